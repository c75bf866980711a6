"""Which operators run.

Whatever is called, a function of Python, a method, a composite operator or a subgraph, reaches a fake mode as operators
with schemas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch._dispatch.python import enable_python_dispatcher as dispatching_in_python  # torch/_dispatch/python.py
from torch._subclasses.fake_tensor import disable_fake_tensor_cache  # torch/_subclasses/fake_tensor.py
from torch.utils._python_dispatch import TorchDispatchMode as OperatorMode  # torch/utils/_python_dispatch.py

from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload

__all__ = ["OperatorMode", "Watcher", "dispatching_in_python", "watching_operators"]

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
