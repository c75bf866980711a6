"""Cases of the hazards: what is called and what with, as it was and with something changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Case = Callable[[bool], contextlib.AbstractContextManager[Any]]

CASES: dict[str, Case] = {}
# More of the same kinds, which take minutes: tried when asked for.
MORE: dict[str, Case] = {}
# Nothing of these is published, since what they rest on cannot be told, or it holds only for the same hash seed.
UNSAID: set[str] = set()

_ABSENT = object()
X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)


def case(build: Callable[[bool], Iterator[Any]]) -> Case:
    """Registers a case: a generator that yields what is called and what with, changed or not."""
    CASES[build.__name__] = contextlib.contextmanager(build)
    return CASES[build.__name__]


def more(build: Callable[[bool], Iterator[Any]]) -> Case:
    """Registers a case that is tried when asked for."""
    MORE[build.__name__] = contextlib.contextmanager(build)
    return MORE[build.__name__]


def unsaid(build: Callable[[bool], Iterator[Any]]) -> Case:
    """Registers a case of which nothing is published, or only for the same hash seed."""
    UNSAID.add(build.__name__)
    return case(build)


def given(
    name: str,
    before: Callable[[], Any],
    after: Callable[[], Any],
    ask: Callable[..., Any],
    *,
    within: Callable[[Callable[..., Any], Any], tuple[Any, tuple[Any, ...]]] = lambda ask, value: (ask, (X, value)),
    register: Callable[..., Case] = more,
) -> None:
    """Registers a case of a value that is another one.

    Args:
        name: of the case.
        before: makes the value.
        after: makes the other one.
        ask: what is computed of `X` and the value.
        within: what is called and what with, of `ask` and the value; by default `ask` with both.
        register: registers the case.
    """

    def another(changed: bool) -> Iterator[Any]:
        yield within(ask, after() if changed else before())

    another.__name__ = name
    register(another)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any, *, when: bool) -> Iterator[None]:
    """Has an attribute another value meanwhile, if `when`."""
    if not when:
        yield
        return
    before = vars(owner).get(name, getattr(owner, name, _ABSENT))
    is_own = name in vars(owner) or not (before is _ABSENT or isinstance(owner, type))
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
