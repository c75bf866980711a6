"""Entries of the journal, without their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compilefarm.core.digests import digest_of
from compilefarm.store.layout import journal_path

_KEY_LENGTH = 16 + 1 + 64
_ACCOUNT_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An accepted prewarm.

    Attributes:
        name: of its object.
        session: of the gateway that has it to do.
        size_bytes: of the object.
        shared_by: what requests that share it have in common; empty for what another gateway had accepted.
    """

    name: str
    session: str
    size_bytes: int
    shared_by: str = ""

    @property
    def path(self) -> str:
        """Where it lies."""
        return journal_path(self.session, name=self.name)

    @property
    def key(self) -> str:
        """The key of the job."""
        return self.name[:_KEY_LENGTH]

    @property
    def account(self) -> str:
        """The digits of the account for which it counts; empty for entries of older releases, which do not say it."""
        return self.name[_KEY_LENGTH + 1 :].rpartition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an artifact has to be to settle an entry.

    Attributes:
        namespaces: in which the artifact may lie.
        hints: for which it has to be.
    """

    namespaces: Sequence[str]
    hints: Sequence[int]


def entry_name(key: str, *, account: str, content: bytes) -> str:
    """Returns the name of an entry."""
    return f"{key}-{digest_of(account.encode())[:_ACCOUNT_LENGTH]}-{digest_of(content)}"


def session_of(path: str) -> str:
    """Returns the session in whose folder an entry lies."""
    return path.split("/")[1]
