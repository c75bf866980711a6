"""What calls of the farm have in common that compile nothing: how long they may take, and who signs what they write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compilefarm.client.clock import Budget, Clock
from compilefarm.client.connection import Connection, Stubs
from compilefarm.client.settings import ConfigurationError
from compilefarm.core.errors import OutOfTime, Silent

if TYPE_CHECKING:
    from compilefarm.core.signatures import SigningKey


@contextmanager
def calling(connection: Connection, *, timeout_seconds: float, clock: Clock) -> Iterator[tuple[Stubs, float | None]]:
    """Yields the stubs and the seconds that a call may take; turns what grpc raises into FarmErrors.

    Raises:
        Silent: the farm has not answered in time.
        FarmError: what else went wrong.
    """
    budget = Budget(timeout_seconds, clock=clock)
    try:
        stubs = connection.stubs(within_seconds=budget.left())
        with connection.calls():
            yield stubs, budget.timeout()
    except OutOfTime:
        raise Silent(f"the farm has not answered within {timeout_seconds:g} s") from None


def read_signing_key(path: str, *, signs: str) -> SigningKey | None:
    """Returns the key that a file holds; None if no file is named.

    Args:
        path: of the file.
        signs: what is signed with it, for the error.

    Raises:
        ConfigurationError: it cannot be used.
    """
    if not path:
        return None
    try:
        from compilefarm.core import signatures

        return signatures.read_signing_key(Path(path).read_bytes())
    except (ImportError, OSError, ValueError) as error:
        raise ConfigurationError(f"{signs} cannot be signed with {path}: {error}") from None
