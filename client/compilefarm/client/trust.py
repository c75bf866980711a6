"""Settings of trust: the token and the certificates of a client, and the keys that must have signed artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec

from compilefarm.client.settings import ConfigurationError, setting
from compilefarm.core.public_keys import PublicKey, read_public_key

_TOKEN = r"[!-~]*"  # noqa: S105 - a pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How a client authenticates, and what it trusts. What each field means stands beside it.

    Raises:
        ConfigurationError: settings contradict each other, or cannot be used.
    """

    token: str = field(
        default="",
        repr=False,
        metadata=setting(
            "Token that the client shows the farm with every call; it never appears in a log.", alternatives="token"
        ),
    )
    token_file: str = field(
        default="",
        metadata=setting("File that holds the token instead; it is read at every call.", alternatives="token"),
    )
    tls_ca: str = field(
        default="",
        metadata=setting(
            "File with the certificate authority of the farm, in PEM; empty: connections are not encrypted. All files "
            "for TLS are read again for each connection."
        ),
    )
    tls_certificate: str = field(
        default="",
        metadata=setting(
            "File with the certificate of this client, in PEM, for a farm that asks for one.",
            alternatives="certificate",
        ),
    )
    tls_key: str = field(
        default="",
        metadata=setting("File with the private key of that certificate, in PEM.", alternatives="certificate"),
    )
    trusted_keys: tuple[PublicKey, ...] = field(
        default=(),
        metadata=setting(
            'Public keys ("ed25519:..."), one of which must have signed an artifact before it is fetched; the variable '
            "separates them with commas. Empty: the farm at the address is trusted.",
            read=lambda text: read_trusted_keys(text.replace(",", " ").split()),
            convert=lambda texts: read_trusted_keys(texts),
        ),
    )
    trusted_cache_keys: tuple[PublicKey, ...] = field(
        default=(),
        metadata=setting(
            "Further public keys that count for entries of torch's own caches, and for no artifact: those of the pods "
            "that write them. With any trusted key, entries that none of them has signed are not read.",
            read=lambda text: read_trusted_keys(text.replace(",", " ").split()),
            is_argument=False,
        ),
    )
    cache_signing_key: str = field(
        default="",
        metadata=setting(
            "File with the private key, as `compilefarm keys new` makes it, with which this pod signs the entries of "
            "torch's own caches that it writes.",
            is_argument=False,
        ),
    )

    trusted_package_keys: tuple[PublicKey, ...] = field(
        default=(),
        metadata=setting(
            "Public keys, one of which must have signed a package of Dynamo before it is installed: those of the pods "
            "that publish. Empty: none is installed. No other key counts for packages.",
            read=lambda text: read_trusted_keys(text.replace(",", " ").split()),
            convert=lambda texts: read_trusted_keys(texts),
        ),
    )
    package_signing_key: str = field(
        default="",
        metadata=setting(
            "File with the private key, as `compilefarm keys new` makes it, with which this pod signs the packages of "
            "Dynamo that it publishes; it installs what is signed with that key, too.",
            convert=str,
        ),
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(_TOKEN, self.token):
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
