"""What workers have found out about C++ compilers, in the store: a worker that starts on a machine and image like
those of an earlier one tries nothing. Workers have no access to the store; the gateway looks for them, and writes.

Headers become part of what workers compile. A farm that signs with a key of its own takes records alone that were
signed with it, so that who writes the store plants no code; one whose key lies with a signer keeps and takes none.
"""

from __future__ import annotations

import asyncio
import logging

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of, is_digest
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend, StoredObject
from compilefarm.store.layout import TOOLCHAINS
from compilefarm.store.signing_policy import SigningPolicy
from compilefarm.v1.gateways_pb2 import ToolchainRecord

log = logging.getLogger(__name__)

_MOST_RECORD_BYTES = 256 * 1024 * 1024
# Each image and kind of machine has one, of 25 MB; those of images that are gone go with time.
_MOST_RECORDS = 32


class StoredToolchains:
    """Records in the store of a farm. Satisfies compilefarm.core.pool.Toolchains.

    Args:
        backend: where they lie.
        signing: how what the farm makes is signed, and what is trusted.
        writes: whether anything may be written.
    """

    def __init__(self, backend: Backend, *, signing: SigningPolicy, writes: bool = True) -> None:
        self._backend = backend
        self._signing = signing
        self._writes = writes

    async def find(self, machine: str) -> ToolchainRecord | None:
        """See Toolchains.find."""
        if not is_digest(machine):
            return None
        try:
            kept = [stored async for stored in self._backend.objects(f"{TOOLCHAINS}/{machine}")]
            for stored in sorted(kept, key=_age, reverse=True):
                if (record := await self._read(stored, machine=machine)) is not None:
                    return record
        except StoreUnavailable as error:
            log.warning("what is known of the C++ compiler cannot be read: %s", error)
        return None

    async def keep(self, record: ToolchainRecord) -> None:
        """See Toolchains.keep."""
        if not self._writes or not is_digest(record.machine):
            return
        try:
            signed = await asyncio.to_thread(self._signing.signed_toolchain, record)
            if signed is None:
                return
            content = await asyncio.to_thread(signed.SerializeToString, deterministic=True)
            digest = await asyncio.to_thread(digest_of, content)
            await self._backend.create(f"{TOOLCHAINS}/{record.machine}/{digest}", content=content)
            await self._forget()
        except StoreUnavailable as error:
            log.warning("what a worker has found out about the C++ compiler cannot be kept: %s", error)

    async def _read(self, stored: StoredObject, *, machine: str) -> ToolchainRecord | None:
        file = None if stored.size_bytes > _MOST_RECORD_BYTES else await self._backend.open(stored.path)
        if file is None:
            return None
        with file:
            content = await asyncio.to_thread(file.read, _MOST_RECORD_BYTES) or b""
        if await asyncio.to_thread(digest_of, content) != stored.path.rpartition("/")[2]:
            log.warning("%s is damaged and passed over", stored.path)
            return None
        try:
            record = await asyncio.to_thread(ToolchainRecord.FromString, content)
        except DecodeError as error:
            log.warning("%s cannot be read and is passed over: %s", stored.path, error)
            return None
        if record.machine != machine:
            log.warning("%s is of another machine and is passed over", stored.path)
            return None
        if not await asyncio.to_thread(self._signing.is_trusted_toolchain, record):
            log.info("%s is not signed by this farm and is passed over", stored.path)
            return None
        return record

    async def _forget(self) -> None:
        """Removes the oldest records beyond a number."""
        kept = [stored async for stored in self._backend.objects(TOOLCHAINS)]
        for stored in sorted(kept, key=_age, reverse=True)[_MOST_RECORDS:]:
            await self._backend.delete(stored.path)


def _age(stored: StoredObject) -> float:
    return stored.modified_seconds
