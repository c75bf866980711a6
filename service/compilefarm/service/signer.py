"""Signs manifests of jobs that were announced, each announcement once, and logs every signature."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotAllowed
from compilefarm.core.public_keys import PublicKey
from compilefarm.core.signatures import SigningKey, signed_content
from compilefarm.service.clock import Clock
from compilefarm.store.layout import manifest_path
from compilefarm.v1.manifest_pb2 import Manifest, Signature

log = logging.getLogger(__name__)

# Longer than any compile, its queue included.
_ANNOUNCED_SECONDS = 24 * 3600.0
# More than any queue holds; an entry takes some 300 bytes.
_MOST_ANNOUNCED = 100_000


@dataclass(slots=True, kw_only=True)
class _Announcement:
    """An announcement: how many manifests of a key may be signed, and until when, in seconds of the clock."""

    count: int = 0
    until_seconds: float = 0.0


class Signer:
    """Signs manifests of announced jobs with its key.

    Args:
        key: the key.
        clock: time; announcements expire.
    """

    def __init__(self, key: SigningKey, *, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        # By key and namespace, the first to expire first.
        self._announced: OrderedDict[tuple[str, str], _Announcement] = OrderedDict()

    @property
    def public(self) -> PublicKey:
        """The public half of the key."""
        return self._key.public

    def announce(self, key: str, *, namespace: str) -> None:
        """One more manifest of that key may be signed, within a day.

        The oldest of too many are forgotten; who announced one that is still to be signed announces it again. Jobs that
        come to nothing are never signed, and whoever sends many of these must not keep others from being announced.

        Raises:
            InvalidRequest: it is not written as a key, or the namespace not as one.
        """
        manifest_path(key, variant=0, namespace=namespace)
        self._forget_expired()
        announcement = self._announced.setdefault((key, namespace), _Announcement())
        announcement.count += 1
        announcement.until_seconds = self._clock.monotonic() + _ANNOUNCED_SECONDS
        self._announced.move_to_end((key, namespace))
        if len(self._announced) > _MOST_ANNOUNCED:
            self._announced.popitem(last=False)

    def sign(self, manifest: Manifest) -> Signature:
        """The signature of a manifest, which uses up an announcement of its key.

        Raises:
            NotAllowed: nobody announced its key in its namespace.
            InvalidRequest: its key is none, or its namespace: nobody can have announced it, and the log need not tell.
        """
        manifest_path(manifest.key, variant=0, namespace=manifest.namespace)
        self._forget_expired()
        place = (manifest.key, manifest.namespace)
        if place not in self._announced:
            log.warning("refused to sign %r in namespace %r: nobody asked for it", *place)
            raise NotAllowed("nobody asked for that key in that namespace, or what was asked for is signed already")
        self._announced[place].count -= 1
        if self._announced[place].count == 0:
            del self._announced[place]
        digest = digest_of(signed_content(manifest))
        log.info("signed %s in namespace %r: content sha256:%s", *place, digest)
        return self._key.signature_of(manifest)

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        while self._announced and next(iter(self._announced.values())).until_seconds < now:
            self._announced.popitem(last=False)
