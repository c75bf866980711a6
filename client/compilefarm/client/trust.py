"""How a client shows who it is, and whom it believes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(r"[!-~]*")


class ConfigurationError(ValueError):
    """The client was told something that it cannot act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How a client shows who it is, and whom it believes.

    Attributes:
        token: shown to the farm with every call; empty: none. It never shows in a log.
        token_file: a file that holds the token instead, read at every call.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ConfigurationError("the token has characters that no token has: use it as `compilefarm keys` says it")
        if self.token and self.token_file:
            raise ConfigurationError("a token and a file with a token are given: give one of them")

    @property
    def has_token(self) -> bool:
        """Whether there is a token to show."""
        return bool(self.token or self.token_file)
