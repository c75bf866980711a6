"""How a client shows who it is, and whom it believes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec

from compilefarm.core.public_keys import PublicKey, read_public_key

_TOKEN = re.compile(r"[!-~]*")


class ConfigurationError(ValueError):
    """The client was told something that it cannot act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How a client shows who it is, and whom it believes.

    Attributes:
        token: shown to the farm with every call; empty: none. It never shows in a log.
        token_file: a file that holds the token instead, read at every call.
        tls_ca: a file with the authority, in PEM, that certifies the farm; empty: nothing is encrypted.
        tls_certificate: a file with the certificate of this client, in PEM, if the farm asks for one. All files for TLS
            are read whenever a connection is made.
        tls_key: a file with its private key.
        trusted_keys: one of them has to have signed an artifact; several while one replaces another. Without any, what
            the farm at the address says is believed.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    trusted_keys: tuple[PublicKey, ...] = ()

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ConfigurationError("the token has characters that no token has: use it as `compilefarm keys` says it")
        if self.token and self.token_file:
            raise ConfigurationError("a token and a file with a token are given: give one of them")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigurationError("a certificate and its key belong together: give both")
        if self.tls_certificate and not self.tls_ca:
            raise ConfigurationError("a certificate is for TLS: give the authority of the farm, too (tls_ca)")

    @property
    def has_token(self) -> bool:
        """Whether there is a token to show."""
        return bool(self.token or self.token_file)


def read_trusted_keys(texts: Iterable[str]) -> tuple[PublicKey, ...]:
    """The keys that are written so.

    Raises:
        ConfigurationError: one is none, or what is needed to use them is not installed.
    """
    try:
        keys = tuple(map(read_public_key, texts))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if keys and find_spec("cryptography") is None:
        raise ConfigurationError(
            "trusted keys are given, and the package cryptography, which checks signatures, is not installed: "
            "pip install 'compilefarm[signing]'"
        )
    return keys
