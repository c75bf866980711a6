"""Canaries of torch_internals/compiling.py."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.compiling import (
    compile_graph,
    compile_lock,
    import_compiler,
    not_serializable_error,
    tracing_with,
)
from compilefarm.torch_internals.dynamo import tracing_mode
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.settings import FUNCTORCH, INDUCTOR
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv


def test_one_program_that_can_be_saved_is_compiled() -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    assert {"dynamic_shapes", "options", "aot"} <= set(inspect.signature(module.standalone_compile).parameters)
    assert hasattr(module.AOTCompiledArtifact, "serialize"), "builder/programs.py calls it"


def test_a_compile_runs_with_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    marks = importlib.import_module("torch._functorch.aot_autograd")
    seen: dict[str, Any] = {}

    def compile_it(graph_module: str, inputs: list[int], **how: Any) -> str:
        static = marks._try_get_metadata_from_dynamo("graph", {}.keys(), 1, [])[1]
        seen.update(how, inputs=inputs, static=static, strict=FUNCTORCH.strict_autograd_cache)
        return f"program of {graph_module}"

    monkeypatch.setattr(module, "standalone_compile", compile_it)
    program = compile_graph("a", (1, 2), inductor={"max_autotune": True}, functorch={}, static_inputs=(1,))
    assert program == "program of a"
    assert seen == {
        "inputs": [1, 2],
        "static": [1],
        "strict": True,
        "dynamic_shapes": "from_tracing_context",
        "options": {"config_patches": {"max_autotune": True}},
        "aot": True,
    }


@pytest.mark.parametrize("tuned_ahead", [True, False])
def test_kernels_are_tuned_while_they_are_compiled_or_at_the_first_call(
    tuned_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting it has the last word over standalone_compile, which sets it, too."""
    lowering = importlib.import_module("torch._inductor.graph").GraphLowering
    write, seen = lowering.codegen, []

    def look(self: Any) -> Any:
        seen.append(INDUCTOR.triton.autotune_at_compile_time)
        return write(self)

    monkeypatch.setattr(lowering, "codegen", look)
    graph = torch.fx.symbolic_trace(torch.nn.Tanh())
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = torch.empty(3)
        for node in graph.graph.nodes:
            node.meta["example_value"] = x
    with torch.no_grad(), tracing_with(mode), torch._inductor.utils.fresh_cache():
        compile_graph(graph, [x], inductor={}, functorch={}, static_inputs=(), tuned_ahead=tuned_ahead)
    assert seen == [tuned_ahead]


def test_a_backward_that_is_not_recorded_compiles_before_its_forward_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    code = importlib.import_module("torch._inductor.output_code")
    importlib.import_module("torch._inductor.cudagraph_trees")
    forward = code.BoxedDeviceIndex(0)

    def compile_it(*_: Any, **__: Any) -> SimpleNamespace:
        graph = SimpleNamespace(current_callable=list, fx_kwargs={"is_backward": True})
        code.maybe_handle_backward_generation(graph, forward)
        return graph

    with pytest.raises(AssertionError):
        compile_it()
    monkeypatch.setattr(module, "standalone_compile", compile_it)
    graph = compile_graph("a", (), inductor={}, functorch={}, static_inputs=())
    assert graph.current_callable is list


def test_a_context_of_its_own_is_traced_in() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing_with(mode):
        assert tracing_mode() is mode
    assert tracing_mode() is None


def test_settings_that_a_compile_relies_on_exist() -> None:
    for name in ("strict_autograd_cache", "force_non_lazy_backward_lowering"):
        assert hasattr(FUNCTORCH, name)
    # graph/compiling.py has torch save graphs that it does not know.
    assert hasattr(INDUCTOR, "unsafe_marked_cacheable_functions")
    assert issubclass(not_serializable_error(), Exception)


def test_dynamo_compiles_under_a_lock_that_a_thread_may_take_twice() -> None:
    with compile_lock(), compile_lock():
        pass
    assert compile_lock() is importlib.import_module("torch._dynamo.convert_frame").compile_lock


def test_what_compiling_needs_can_be_imported_before() -> None:
    import_compiler()
    assert "torch._inductor.compile_fx" in sys.modules


def test_aot_autograd_reads_in_one_place_which_inputs_are_static() -> None:
    """_with_static_inputs stands in for what reads the marks of Dynamo."""
    module = importlib.import_module("torch._functorch.aot_autograd")
    parameters = inspect.signature(module._try_get_metadata_from_dynamo).parameters
    assert list(parameters) == ["mod", "param_keys", "full_args_num", "full_args_descs"]
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert module._try_get_metadata_from_dynamo(graph, {}.keys(), 1, []) == (None, []), "sources and numbers"


def test_entries_are_pickled_by_one_function() -> None:
    """_pickling_real_tensors stands in for it."""
    cache = importlib.import_module("torch._functorch._aot_autograd.autograd_cache").AOTAutogradCache
    assert isinstance(inspect.getattr_static(cache, "_pickle_entry"), staticmethod)
    assert list(inspect.signature(cache._pickle_entry).parameters) == ["entry", "remote"]
    assert "AOTAutogradCache._pickle_entry(entry, remote)" in inspect.getsource(cache.save)


def test_a_bundle_is_one_entry_and_two_tables() -> None:
    kind = importlib.import_module("torch._dynamo.aot_compile_types").BundledAOTAutogradSerializableCallable
    assert "bundle = (serialized_entry, triton_kernels, triton_constant_args)" in inspect.getsource(
        kind.serialize_compile_artifacts
    ), "builder/programs.py takes the entry and leaves the tables"
    assert "pickle.loads(data)" in inspect.getsource(kind.deserialize_compile_artifacts), "it makes a pickle of them"
