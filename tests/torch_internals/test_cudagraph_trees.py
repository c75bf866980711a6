"""Canaries of torch_internals/cudagraph_trees.py."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.compiler_stub import COMPILER, TREES
from compilefarm.torch_internals.cudagraph_trees import (
    aligned,
    begin_backward,
    keep_for_thread,
    manager_of,
    manager_type,
    recorded_tensors,
    recording_through,
    storage_at,
    unwinding,
)


def test_torch_records_in_a_tree_that_can_be_watched() -> None:
    trees = importlib.import_module(TREES)
    names = list(inspect.signature(trees.cudagraphify_impl).parameters)
    assert names == ["model", "inputs", "static_input_idxs", "args", "kwargs"], "recording_through stands in for it"
    given = inspect.signature(importlib.import_module(COMPILER).cudagraphify).parameters
    assert {"device_index", "is_backward", "mutated_input_idxs"} <= set(given), "loader/recording.py reads these"
    for name in ("run_eager", "record_function"):
        parameters = list(inspect.signature(getattr(manager_type(), name)).parameters)
        assert parameters == ["self", "new_inputs", "function_id"], "loader/recording.py has one of its own"
    assert {"model", "mutated_input_idxs"} <= {field.name for field in dataclasses.fields(trees.WrappedFunction)}
    code = importlib.import_module("torch._inductor.output_code")
    graph, names = code.CompiledFxGraph, inspect.signature(code.maybe_handle_backward_generation).parameters
    assert list(names) == ["compiled_graph", "boxed_forward_device_index"], "recording_through stands in for it"
    assert "mutated_input_idxs" in {field.name for field in dataclasses.fields(graph)}


def test_what_is_looked_up_at_a_load_is_replaced_for_that_time() -> None:
    trees = importlib.import_module(TREES)
    code = importlib.import_module("torch._inductor.output_code")
    original, handled = trees.cudagraphify_impl, code.maybe_handle_backward_generation

    def record(theirs: Callable[..., Any], model: str) -> Any:
        return theirs, model

    def handle(graph: object, device: object) -> None:
        """Stands for that of a recording."""

    with recording_through(record, handle_backward=handle):
        assert trees.cudagraphify_impl("model") == (original, "model")
        assert code.maybe_handle_backward_generation is handle
    with recording_through(None, handle_backward=handle):
        assert trees.cudagraphify_impl is original
    assert (trees.cudagraphify_impl, code.maybe_handle_backward_generation) == (original, handled)


def test_a_keeper_of_graphs_knows_what_it_has_recorded() -> None:
    # tests/loader/test_recording.py makes some, on stand-ins for a GPU.
    trees = importlib.import_module(TREES)
    assert hasattr(trees.local, "tree_manager_containers") or torch._C._is_key_in_tls("tree_manager_containers")
    assert callable(torch._C._stash_obj_in_tls)
    assert "get_tree_manager" in vars(trees.TreeManagerContainer)
    assert "get_container" in manager_of.__code__.co_names
    manager = object.__new__(manager_type())
    manager._get_cuda_graph_recorded_tensor_checker = lambda: bool
    assert recorded_tensors(manager) is bool
    assert callable(manager_type()._get_cuda_graph_recorded_tensor_checker)


def test_what_is_kept_for_a_thread_is_held() -> None:
    """Torch gives up a reference when the thread ends."""
    value: dict[str, int] = {}
    taken: list[int] = []

    def keep() -> None:
        before = sys.getrefcount(value)
        keep_for_thread("of this test", value)
        taken.append(sys.getrefcount(value) - before)

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    assert taken == [1]


def test_a_keeper_forgets_a_run_that_has_failed() -> None:
    source = inspect.getsource(manager_type())
    for done in ("self.warmed_up_functions.add(function_id)", "self.current_node = node", "return self._current_node"):
        assert done in source, "unwinding takes it back"
    manager = SimpleNamespace(current_node="before", warmed_up_functions={"another", "this"})

    def fail() -> None:
        manager.current_node = "of the run"
        raise RuntimeError

    with pytest.raises(RuntimeError), unwinding(manager, "this"):
        fail()
    assert manager == SimpleNamespace(current_node="before", warmed_up_functions={"another"})


def test_a_backward_tells_the_graphs_of_its_forward() -> None:
    assert callable(manager_type().set_to_running_backward)
    # No forward was recorded, and none is told.
    begin_backward(7)


def test_captures_that_were_left_begun_are_found_in_frames_of_graphs() -> None:
    graph = torch.cuda.CUDAGraph
    assert {"self"} == {step.__code__.co_varnames[0] for step in (graph.capture_begin, graph.capture_end)}
    assert callable(graph.pool), "it raises before a capture has ended"
    assert {"clone_state", "graphsafe_set_state"} <= set(dir(torch.Generator))


def test_a_tensor_is_made_again_where_it_lay() -> None:
    lies = torch.arange(3.0)
    storage = lies.untyped_storage()
    again = torch.empty(0).set_(storage_at(storage.data_ptr(), lies.device, storage.nbytes()), 1, (2,), (1,))
    lies[2] = 5
    assert again.tolist() == [1.0, 5.0]


def test_what_is_not_recorded_is_aligned() -> None:
    utils = importlib.import_module("torch._inductor.utils")
    askew = torch.zeros(9)[1:]
    write = utils.align_inputs_from_check_idxs(lambda inputs: inputs[0].add_(1).data_ptr(), [0], frozenset([0]))
    assert write([askew]) % 16 == 0
    assert askew.sum() == 8, "what is written to a copy is written to the original"
    assert aligned(list, [askew], written=[0])([askew]) == [askew]
