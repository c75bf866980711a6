"""States of torch, set within a context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def restored(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    """Writes a value, and then what was there before."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


default_dtype = partial(restored, torch.get_default_dtype, torch.set_default_dtype)
matmul_precision = partial(restored, torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
threads = partial(restored, torch.get_num_threads, torch.set_num_threads)


def setting(owner: Any, name: str, value: object) -> AbstractContextManager[None]:
    """An attribute of a module or an object has that value."""
    return restored(partial(getattr, owner, name), partial(setattr, owner, name), value)


def autocast_dtype(device_type: str, dtype: torch.dtype) -> AbstractContextManager[None]:
    """What a graph that switches autocast on without a dtype takes; no such device is needed."""
    return restored(
        partial(torch.get_autocast_dtype, device_type), partial(torch.set_autocast_dtype, device_type), dtype
    )
