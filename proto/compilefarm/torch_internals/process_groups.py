"""Groups of processes as torch's operators for collectives find them: by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_C10D = "torch._C._distributed_c10d"
# torch/_dynamo/repro/after_aot.py: torch 2.11 notes the rank beside a graph, for whoever looks for a fault in it.
_WRITES_NOTES = "torch._dynamo.repro.after_aot"


def register_collectives() -> None:
    """Registers what torch's operators for collectives do with fake tensors, if that is not registered yet."""
    importlib.import_module("torch.distributed._functional_collectives")


def size_of_group(name: str) -> int:
    """How many processes are in a group of this process.

    Raises:
        RuntimeError: this process has no group of that name.
    """
    group = importlib.import_module("torch.distributed.distributed_c10d")._resolve_process_group(name)
    return int(group.size())


@contextmanager
def registered_group(name: str, group: Any) -> Iterator[None]:
    """Inside, operators find a group by this name; torch itself keeps no reference to it."""
    c10d = importlib.import_module(_C10D)
    c10d._register_process_group(name, group)
    try:
        yield
    finally:
        c10d._unregister_process_group(name)


def process_group_type() -> type:
    """What a group of processes is an instance of; a type that Python code may derive from."""
    group: type = torch.distributed.ProcessGroup
    return group


def finished_work(result: Any) -> Any:
    """What a collective returns that is over (torch.distributed.Work)."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return importlib.import_module(_C10D)._create_work_from_future(future)


def is_asked_for_notes() -> bool:
    """Whether the function that calls this one was called for notes alone that torch takes of a graph."""
    return sys._getframe(2).f_globals.get("__name__") == _WRITES_NOTES
