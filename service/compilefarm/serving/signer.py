"""The signer of a farm: keeps the signing key in a process, and best a user, of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from compilefarm.service.clock import SystemClock
from compilefarm.service.garbage import return_freed_memory
from compilefarm.service.signer import Signer
from compilefarm.service.signer_service import serving_signer
from compilefarm.service.signing import read_key_file
from compilefarm.serving.process import end_asked

log = logging.getLogger(__name__)


async def sign(key_file: str, *, addresses: Sequence[str], group: str | None) -> None:
    """Signs until SIGTERM or SIGINT.

    Args:
        key_file: of the private key.
        addresses: of each socket, `unix:` and its path. Each has places for calls of its own.
        group: whose users may connect, beside this user; None: nobody else's.

    Raises:
        FarmError: the key cannot be read, or the socket not be made.
    """
    return_freed_memory()
    end = end_asked(asyncio.Event())
    clock = SystemClock()
    signer = Signer(read_key_file(key_file), clock=clock)
    async with AsyncExitStack() as stack:
        for address in addresses:
            await stack.enter_async_context(serving_signer(signer, address=address, group=group, clock=clock))
        log.info("signing with %s at %s", signer.public.text, ", ".join(addresses))
        await end.wait()
