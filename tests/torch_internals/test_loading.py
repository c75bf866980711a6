"""Canaries of torch_internals/loading.py."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from types import SimpleNamespace

import torch

from compilefarm.torch_internals.loading import (
    call_directly,
    finishing_with,
    import_loader,
    make_callable,
    trace_sizes,
)
from compilefarm.torch_internals.settings import INDUCTOR


def test_settings_that_a_load_relies_on_exist() -> None:
    # loader/programs.py
    assert hasattr(INDUCTOR.triton, "cudagraphs")
    assert hasattr(INDUCTOR, "compile_threads")


def test_what_loading_needs_can_be_imported_before() -> None:
    import_loader()
    assert "torch._functorch._aot_autograd.aot_autograd_result" in sys.modules


def test_a_graph_is_made_callable_in_one_place() -> None:
    cache = importlib.import_module("torch._inductor.codecache").FxGraphCache
    assert list(inspect.signature(cache.cache_hit_post_compile).parameters) == ["graph", "cache_info", "constants"]
    original, finished = cache.cache_hit_post_compile, []
    with finishing_with(lambda graph, constants: finished.append((graph, constants))):
        assert cache.cache_hit_post_compile("graph", {}, "constants") == ("graph", {})
    assert finished == [("graph", "constants")]
    assert cache.cache_hit_post_compile is original
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    assert list(inspect.signature(graph.after_deserialization).parameters) == ["self", "constants"]


def test_a_call_of_a_graph_is_a_call_of_its_program() -> None:
    kind = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    called = inspect.getsource(kind.__call__)
    assert "torch._inductor.debug" in called, "it is imported before torch makes a call"
    assert "return self.current_callable(inputs)" in called, "this is done and nothing else"
    assert hasattr(torch.autograd.profiler, "_is_profiler_enabled"), "calls are left to torch then"
    graph = object.__new__(kind)
    # It looks at this when it is freed.
    graph.compiled_fn_runner = None
    call_directly(graph)
    graph.current_callable = lambda inputs: [len(inputs)]
    assert graph([1, 2]) == [2]
    assert isinstance(graph, kind)


def test_torch_refuses_to_keep_what_a_backward_pass_may_write_to() -> None:
    wrappers = inspect.getsource(importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers"))
    assert "fw_metadata.bw_donated_idxs != []" in wrappers, "spare_saved_tensors makes it an empty list"
    assert "torch._C._autograd._get_current_graph_task_keep_graph()" in wrappers
    result = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    fields = {field.name for field in dataclasses.fields(result.BundledAOTAutogradResult)}
    assert {"runtime_metadata", "compiled_bw", "serialized_bw_module"} <= fields
    collected = inspect.getsource(importlib.import_module("torch._functorch._aot_autograd.graph_compile"))
    assert "inner_meta.bw_donated_idxs = fw_metadata.bw_donated_idxs" in collected, "one list, which is emptied"


def test_a_backward_pass_that_makes_tensors_of_traced_sizes_is_read() -> None:
    # As it is made by AOTAutograd; torch alone ends with an error at the size.
    graph = torch.fx.Graph()
    x, size = graph.placeholder("x"), graph.placeholder("size")
    full = graph.call_function(torch.ops.aten.full.default, ([size, 2], 1))
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (x, full)))
    result = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    serialized = result.serialize_graph_module(torch.fx.GraphModule({}, graph))
    trace_sizes(SimpleNamespace(serialized_bw_module=serialized))
    torch.testing.assert_close(serialized.deserialize()(torch.ones(3, 2), 3), torch.full((3, 2), 2.0))


def test_a_program_is_made_of_an_entry_by_one_method() -> None:
    result = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    names = list(inspect.signature(result.BundledAOTAutogradResult.wrap_post_compile).parameters)
    assert names == ["self", "args", "aot_config", "fx_config"], "make_callable calls it"
    source = inspect.getsource(result.deserialize_bundled_cache_entry)
    for done in ("entry.guards_expr = None", '"cudagraphs": ', '"boxed_forward_device_index": ', "compiled_fn(list("):
        assert done in source, "loader/programs.py and make_callable do the same"
    bundled = {field.name for field in dataclasses.fields(result.BundledCompiledForward)}
    assert "result" in bundled, "the graph of compiled_fw is its result"


class Entry:
    """As torch's, as far as it is asked."""

    sanitized_aot_config = "config"

    def wrap_post_compile(self, args: list[object], aot_config: str, fx_config: dict[str, object]) -> object:
        return lambda inputs: [args, aot_config, bool(fx_config["cudagraphs"]), *inputs]


def test_settings_say_whether_a_program_is_recorded() -> None:
    for is_recorded in (False, True):
        with INDUCTOR.patch({"triton.cudagraphs": is_recorded}):
            assert make_callable(Entry())([1]) == [[], "config", is_recorded, 1]
