"""Signers in this process and in one of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from compilefarm.core.signatures import SigningKey, new_signing_key
from compilefarm.service.remote_signer import open_remote_signer
from compilefarm.service.signer import Signer
from compilefarm.service.signer_service import serving_signer
from compilefarm.service.testing import ManualClock
from compilefarm.store.testing import sample_artifact, sample_key

SIGNING_KEY = new_signing_key()
KEY = sample_key("one")
MANIFEST = sample_artifact(KEY).manifest


@asynccontextmanager
async def signing(folder: Path, *, key: SigningKey = SIGNING_KEY) -> AsyncIterator[str]:
    """Serves a signer with a key; yields its address."""
    address, clock = f"unix:{folder / 'signer.sock'}", ManualClock()
    async with serving_signer(Signer(key, clock=clock), address=address, group=None, clock=clock):
        yield address


@contextmanager
def signing_command(folder: Path, *addresses: str, begin: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """`compilefarm signer` at these addresses.

    Args:
        folder: for its key.
        addresses: where it listens.
        begin: what the command is put behind, such as a limit.
    """
    key = folder / "key.pem"
    key.write_bytes(SIGNING_KEY.pem())
    key.chmod(0o600)
    command = [*begin, sys.executable, "-m", "compilefarm.cli.main", "signer", "--key", str(key)]
    command += [argument for address in addresses for argument in ("--listen", address)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert SIGNING_KEY.public.text in process.stderr.readline()
            yield process
        finally:
            process.terminate()


async def have_signed(address: str) -> None:
    """Has a signer sign a manifest that was announced."""
    remote = await open_remote_signer(address)
    await remote.announce(KEY, namespace="")
    await remote.signature_of(MANIFEST)
