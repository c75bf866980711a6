"""Opens the signing policy of a farm: a key in a file, a signer in another process, or no signatures."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence

from compilefarm.core.public_keys import PublicKey, read_public_key
from compilefarm.core.signatures import SigningKey, read_signing_key
from compilefarm.service.config import CannotStart
from compilefarm.service.remote_signer import open_remote_signer
from compilefarm.service.signer_service import socket_path
from compilefarm.service.watched import read_file
from compilefarm.store.signing_policy import UNSIGNED, LocalSigner, ManifestSigner, SignedManifests, SigningPolicy

log = logging.getLogger(__name__)


async def open_signing_policy(
    *, key_file: str | None, signer: str | None, trusted_keys: Sequence[str]
) -> SigningPolicy:
    """Opens the signing policy; unsigned if neither a key nor a signer is configured.

    Args:
        key_file: with the private key.
        signer: address of a process that has it, "unix:PATH".
        trusted_keys: public keys whose signatures count beside its own.

    Raises:
        CannotStart: the file holds no key, others may change it, the signer does not answer, a public key is none, or
            both are named.
    """
    chosen = await _open_signer(key_file=key_file, signer=signer)
    if chosen is None:
        if trusted_keys:
            raise CannotStart(
                "--trusted-key goes with --signing-key or --signer: a farm that does not sign serves all that it has"
            )
        return UNSIGNED
    trusted = _read_public_keys(trusted_keys)
    log.info("artifacts are signed; pods check that with COMPILEFARM_TRUSTED_KEYS=%s", chosen.public.text)
    return SignedManifests(chosen, trusted=trusted)


def read_key_file(path: str) -> SigningKey:
    """Reads the private key in a file.

    Raises:
        CannotStart: it holds none, or others may read or change it.
    """
    content = read_file(path, what="the signing key")
    if stat.S_IMODE(os.stat(path).st_mode) & (stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise CannotStart(f"the signing key {path} may be read or changed by others: chmod 600 {path}")
    try:
        return read_signing_key(content)
    except ValueError as error:
        raise CannotStart(f"artifacts cannot be signed with {path}: {error}") from None


async def _open_signer(*, key_file: str | None, signer: str | None) -> ManifestSigner | None:
    if key_file is not None and signer is not None:
        raise CannotStart("--signing-key and --signer exclude each other: the signer has the key")
    if signer is not None:
        socket_path(signer)
        return await open_remote_signer(signer)
    return None if key_file is None else LocalSigner(read_key_file(key_file))


def _read_public_keys(texts: Sequence[str]) -> list[PublicKey]:
    try:
        return [read_public_key(text) for text in texts]
    except ValueError as error:
        raise CannotStart(f"--trusted-key: {error}") from None
