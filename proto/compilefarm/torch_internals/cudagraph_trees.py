"""Torch's trees of CUDA graphs (torch/_inductor/cudagraph_trees.py), which record and replay parts of programs."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compilefarm.torch_internals.compiler_stub import TREES, without_compiler

Call = Callable[[list[Any]], Any]

# The memory that a user has pools begin with; torch 2.11 does not know it.
_INITIAL_MEMORY = "cudagraph_initial_mempool_allocation_gb"
_LOCAL = ("tree_manager_containers", "tree_manager_locks")


@contextmanager
def recording_through(
    record: Callable[..., Call] | None, *, handle_backward: Callable[[Any, Any], None]
) -> Iterator[None]:
    """Inside, programs are loaded whose parts are recorded by `record`, and the compiler is not imported for that.

    Stands in for what is looked up when a program is loaded: cudagraph_trees.cudagraphify_impl, and
    output_code.maybe_handle_backward_generation.

    Args:
        record: called instead of torch's own, which comes first, with what that is called with; None for torch's own.
        handle_backward: called with a graph (CompiledFxGraph) and a box with the number of the GPU on which its forward
            is recorded, when a graph is loaded.
    """
    with without_compiler():
        trees: Any = importlib.import_module(TREES)
        code: Any = importlib.import_module("torch._inductor.output_code")
        originals = trees.cudagraphify_impl, code.maybe_handle_backward_generation
        code.maybe_handle_backward_generation = handle_backward
        if record is not None:
            trees.cudagraphify_impl = lambda *given, **how: record(originals[0], *given, **how)
        try:
            yield
        finally:
            trees.cudagraphify_impl, code.maybe_handle_backward_generation = originals


def begin_backward(device_index: int) -> None:
    """What torch does before a backward that it does not record (cudagraph_trees.py: Backward Generation Handling)."""
    manager = importlib.import_module(TREES).get_manager(device_index, create_if_none_exists=False)
    if manager is not None:
        manager.set_to_running_backward()


def aligned(model: Call, inputs: Sequence[Any], *, written: Sequence[int]) -> Call:
    """The model; inputs on a GPU begin where kernels may load several elements at once, as torch has it for what it
    does not record (torch/_inductor/output_code.py: maybe_realign_inputs).

    Args:
        model: what is called.
        inputs: as it is called with.
        written: numbers of those that it writes to.
    """
    align = importlib.import_module("torch._inductor.utils").align_inputs_from_check_idxs
    checked = [number for number, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each.is_cuda]
    call: Call = align(model, checked, frozenset(written))
    return call


def manager_of(how: Mapping[str, Any]) -> Any:
    """The keeper of the graphs of a GPU and of their memory; made here where there is none, which takes memory and a
    driver that records.

    Args:
        how: what torch records with (cudagraphify_impl).
    """
    trees = importlib.import_module(TREES)
    local = trees.local
    if not hasattr(local, _LOCAL[0]) and not torch._C._is_key_in_tls(_LOCAL[0]):
        # Torch 2.11 does this in the thread that imports it, and 2.15 in every thread that comes.
        local.tree_manager_containers = {}
        local.tree_manager_locks = defaultdict(threading.Lock)
        for name in _LOCAL:
            keep_for_thread(name, getattr(local, name))
    arguments = [how[_INITIAL_MEMORY]] if _INITIAL_MEMORY in how else []
    return trees.get_container(how["device_index"]).get_tree_manager(*arguments)


def keep_for_thread(name: str, value: object) -> None:
    """Keeps a value for this thread, and for those that go backward for it.

    When a thread ends, torch gives up a reference to what it kept for it. Torch 2.11 has taken none: the memory would
    be freed under whoever has the value.
    """
    before = sys.getrefcount(value)
    torch._C._stash_obj_in_tls(name, value)
    if sys.getrefcount(value) == before:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def manager_type() -> Any:
    """The class of such a keeper: it warms up by `run_eager`, and records by `record_function`."""
    return importlib.import_module(TREES).CUDAGraphTreeManager


@contextmanager
def unwinding(manager: Any, function_id: Any) -> Iterator[None]:
    """Inside, a part of a program warms up; where that fails, the keeper is as it was before. Torch leaves it with a
    run that has no results, and 2.11 ends the next call, whichever, with an AssertionError for it."""
    node = manager.current_node
    try:
        yield
    except BaseException:
        manager.current_node = node
        manager.warmed_up_functions.discard(function_id)
        raise


def recorded_tensors(manager: Any) -> Callable[[torch.Tensor], bool]:
    """Tells whether an earlier graph has left a tensor, in the pool of its graphs."""
    check: Callable[[torch.Tensor], bool] = manager._get_cuda_graph_recorded_tensor_checker()
    return check


def storage_at(address: int, device: torch.device, size_bytes: int) -> Any:
    """Memory that others own, as torch makes the tensors that it records with (cudagraph_trees.py: create_storage)."""
    return torch._C._construct_storage_from_data_pointer(address, device, size_bytes)
