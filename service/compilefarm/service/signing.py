"""The key with which a farm signs its artifacts. Only the gateway has it; no worker ever does."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence

from compilefarm.core.public_keys import read_public_key
from compilefarm.core.signatures import read_signing_key
from compilefarm.service.config import CannotStart
from compilefarm.service.watched import read_file
from compilefarm.store.seals import NoSeal, Seal, SignatureSeal

log = logging.getLogger(__name__)


def open_seal(*, key_file: str | None, trusted_keys: Sequence[str]) -> Seal:
    """What vouches for artifacts.

    Args:
        key_file: with the private key; None: nothing does.
        trusted_keys: public keys whose signatures count beside its own.

    Raises:
        CannotStart: the file holds no key, others may change it, or a public key is none.
    """
    if key_file is None:
        if trusted_keys:
            raise CannotStart("--trusted-key goes with --signing-key: a farm that does not sign serves all that it has")
        return NoSeal()
    content = read_file(key_file, what="the signing key")
    if stat.S_IMODE(os.stat(key_file).st_mode) & (stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise CannotStart(f"the signing key {key_file} may be read or changed by others: chmod 600 {key_file}")
    try:
        key = read_signing_key(content)
    except ValueError as error:
        raise CannotStart(f"artifacts cannot be signed with {key_file}: {error}") from None
    try:
        trusted = [read_public_key(text) for text in trusted_keys]
    except ValueError as error:
        raise CannotStart(f"--trusted-key: {error}") from None
    log.info("artifacts are signed; pods check that with COMPILEFARM_TRUSTED_KEYS=%s", key.public.text)
    return SignatureSeal(key, trusted=trusted)
