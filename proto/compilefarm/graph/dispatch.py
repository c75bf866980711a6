"""Which operators a graph calls while it runs on fake tensors.

Whatever a node calls, a function of Python, a method, a composite operator or a subgraph, reaches a fake mode as
operators with schemas. Beside `targets`, `operators`, `symbols`, `tracing` and `settings` this module touches private
names of torch; tests/graph/test_private_torch.py says what broke when a release moves one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (  # torch/_subclasses/fake_tensor.py
    FakeTensorMode,
    disable_fake_tensor_cache,
)

# Called instead of an operator, with its arguments and what runs it; gives what that gives.
Watcher = Callable[[OpOverload, Sequence[Any], Mapping[str, Any], Callable[[], Any]], Any]

_one_at_a_time = threading.RLock()


@contextmanager
def watching_operators(watcher: Watcher) -> Iterator[None]:
    """Has `watcher` called around every operator that this thread runs in any fake mode.

    Subgraphs of higher-order operators run in fake modes that torch makes for them, so that no one mode sees all. Other
    threads that watch wait for each other.
    """
    with _one_at_a_time:
        unwatched, owner = FakeTensorMode.dispatch, threading.get_ident()

        def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
            def run() -> Any:
                return unwatched(mode, func, types, args, kwargs or {})

            if threading.get_ident() != owner:
                return run()
            if isinstance(func, OpOverload):
                return watcher(func, args, kwargs or {}, run)
            # A subgraph whose results are remembered would not run, and its operators would not be seen.
            with disable_fake_tensor_cache(mode) if isinstance(func, HigherOrderOperator) else nullcontext():
                return run()

        FakeTensorMode.dispatch = dispatch
        try:
            yield
        finally:
            FakeTensorMode.dispatch = unwatched
