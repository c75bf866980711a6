"""Entries of torch's own caches in a farm, as torch asks for them in the middle of a compile: whatever goes wrong is a
miss, or an entry that is not kept, and takes no longer than it may.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from compilefarm.client.announcements import announce_defect
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import Clock
from compilefarm.client.config import CACHE_SIGNING_KEY, ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.read_ahead import ReadAhead
from compilefarm.core.errors import FarmError, NotStored
from compilefarm.core.interruptions import raise_interruption
from compilefarm.core.printable import printable
from compilefarm.v1.cache_service_pb2 import TorchCache

_LOGGER = logging.getLogger("compilefarm.client")


class FarmCaches:
    """Entries in a farm. Threads share it, and forked processes may go on using it.

    Args:
        config: of the client.
        connection: to the farm.
        clock: time.

    Raises:
        ConfigurationError: the signing key cannot be used.
    """

    def __init__(self, config: ClientConfig, *, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._calls = CacheCalls(config, connection=connection, clock=clock)
        self._reads = ReadAhead(self._calls, clock=clock)
        self._told: set[str] = set()

    def find(self, cache: TorchCache.ValueType, key: str) -> bytes | None:
        """Returns the bytes of an entry; None is a miss, whatever the reason."""
        with self._going_on("read"):
            return self._reads.read(cache, key)
        return None

    def keep(self, cache: TorchCache.ValueType, key: str, content: bytes) -> None:
        """Writes an entry, if that can be done."""
        # It would take the place of one that is signed.
        if self._calls.lacks_signing_key:
            self.leave_out(
                "no_signing_key",
                why=f"this pod trusts keys, and has none to sign with: {CACHE_SIGNING_KEY} names it; others' are read",
            )
            return
        with self._going_on("written"):
            self._reads.forget(cache, key)
            self._calls.write(cache, key, content)

    def leave_out(self, reason: str, *, why: str, action: str = "written") -> None:
        """Says, once for each reason, that an entry is not written, or not so much as looked for."""
        self._tell_once(reason, action=action, why=why)

    @contextmanager
    def _going_on(self, action: str) -> Iterator[None]:
        """Goes on whatever happens inside; says once for each reason that it did."""
        try:
            yield
        except NotStored:
            return
        except FarmError as error:
            self._connection.give_up(error)
            self._tell_once(error.reason, action=action, why=str(error))
        except Exception as error:  # noqa: BLE001 - logged with its traceback; a compile goes on without its cache
            raise_interruption(error)
            announce_defect(error, where="torch's caches")

    def _tell_once(self, reason: str, *, action: str, why: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            _LOGGER.warning(
                "compilefarm: entries of torch's caches are not %s, and torch goes on with local ones [%s]: %s",
                *(action, reason, printable(" ".join(why.split()))),
            )
