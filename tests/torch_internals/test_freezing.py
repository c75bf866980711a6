"""Canaries of torch_internals/freezing.py. Nothing is lowered: what is frozen runs as the graph that it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.loader.preparation import prepare
from compilefarm.torch_internals import freezing
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.freezing import (
    ITEM,
    NotPreparable,
    Preparation,
    Reference,
    Step,
    freezing_inputs,
    preparation_of,
)
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv
from tests.worker.inductor import compiled


class _Model(nn.Module):
    """Weights that are packed, folded, read as they are, written to and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.scale, self.returned = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("same", torch.ones(1).expand(8, 1, 1))
        self.register_buffer("small", torch.ones(0, 2, dtype=torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        scale = self.scale.exp() + self.small.float().sum()
        return self.layers(x) * scale * self.same, self.returned.view(3, 1)


class _Frozen(Exception):
    pass


def _stopping(seen: list[Any]) -> Any:
    """In the place of what lowers a graph: keeps the graph, and what is said of it, and ends the compile when torch
    goes on with it."""

    class Lowered(SimpleNamespace):
        def post_compile(self, *_args: Any) -> None:
            raise _Frozen

        set_triton_bundle = post_compile

    def lower(graph: fx.GraphModule, *_args: Any, **_given: Any) -> Any:
        names = {str(node.target): str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
        lowered = Lowered(constants={}, frozen_param_names=names, current_callable=lambda inputs: inputs)
        seen.append((graph, lowered))
        return lowered

    return lower


def _freeze(model: nn.Module, x: torch.Tensor, *, expected: str) -> tuple[list[Any], list[torch.Tensor]]:
    """Compiles a frozen model, which ends with an error that says so; returns what was lowered, and the weights."""
    graphs: list[Any] = []
    seen: list[Any] = []
    lowering: Any = importlib.import_module("torch._inductor.compile_fx")
    torch.compiler.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True), pytest.MonkeyPatch.context() as patch:
        torch.compile(model, backend=lambda *captured: graphs.append(captured) or captured[0].forward)(x)
        encoded = TorchRuntime().encode(*graphs[0], options={})
        patch.setattr(lowering, "fx_codegen_and_compile", _stopping(seen))
        with pytest.raises(Exception, match=expected):
            compiled(encoded)
    return seen, encoded.held


@pytest.fixture(scope="module")
def frozen() -> tuple[nn.Module, list[torch.Tensor], fx.GraphModule, Preparation]:
    """A model, what its graph is given, and the graph that is lowered with what it takes of weights."""
    model, x = _Model().eval(), torch.rand(2, 3, 8, 8)
    seen, held = _freeze(model, x, expected="Frozen")
    graph, lowered = seen[0]
    preparation = preparation_of(lowered)
    assert preparation is not None
    return model, [x, *held], graph, preparation


class _Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.tensor([2, 0, 2, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.unique(self.codes) + x.sum()


def test_what_is_as_large_as_weights_say_is_not_frozen() -> None:
    # Of synthetic ones the program would be for another size than in the pod.
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        seen, _ = _freeze(_Codes(), torch.ones(3), expected="is decided by what weights hold")
    assert not seen


def test_inductor_says_how_it_makes_constants_of_weights(frozen: Any) -> None:
    _, given, _, preparation = frozen
    operators = {step.operator for step in preparation.steps}
    assert {"mkldnn::_reorder_convolution_weight", "aten::exp"} <= operators
    weights = [given[number] for number in preparation.weights]
    assert [(each.dtype, tuple(each.shape), each.stride()) for each in weights] == list(preparation.forms)
    kept = {tuple(each.shape) for number, each in enumerate(given) if number not in preparation.weights}
    assert kept == {(2, 3, 8, 8), (1,), (3,)}, "what is no weight, written to, or returned"


def test_the_graph_with_constants_made_so_computes_what_the_model_does(frozen: Any) -> None:
    model, given, graph, preparation = frozen
    weights, others = preparation.split(given)
    with torch.no_grad():
        for name, tensor in zip(preparation.results, prepare(preparation, weights), strict=True):
            setattr(graph, name, tensor)
        # The new contents of what is written to are among the results.
        results = graph(*others)
        expected, _ = model(given[0])
    assert any(each.shape == expected.shape and torch.allclose(each, expected, atol=1e-5) for each in results)


@pytest.fixture
def lowering() -> Iterator[freezing._Recorder]:
    """Inside, a graph is lowered that has one constant, which was made of a weight."""
    recorder = freezing._Recorder(held={}, made={"constant": Reference(0)}, forms=[(torch.int64, (2,), (1,))])
    graph = fx.Graph()
    graph.output(graph.get_attr("constant"))
    with freezing._Following(recorder, fx.GraphModule({"constant": torch.ones(2, dtype=torch.int64)}, graph)) as mode:
        yield mode._recorder


def _constant(recorder: freezing._Recorder) -> torch.Tensor:
    ((tensor, _),) = recorder.followed.values()
    return tensor


def test_what_is_made_of_constants_while_a_graph_is_lowered_is_said(lowering: freezing._Recorder) -> None:
    made, other = _constant(lowering).to(torch.int32).chunk(2)[1], torch.ones(3).neg()
    compiled_graph = SimpleNamespace(constants={"made": made, "other": other}, frozen_param_names={})
    found = lowering.preparation(compiled_graph, weights=[0])
    assert list(compiled_graph.constants) == ["other"]
    assert [step.operator for step in found.steps] == ["aten::_to_copy", "aten::split.Tensor", ITEM]
    assert [each.tolist() for each in prepare(found, [torch.tensor([5, 7])])] == [[7]]


def test_what_no_step_says_is_passed_over_only_where_the_program_does_not_hold_it(lowering: freezing._Recorder) -> None:
    symbol = ShapeEnv().create_unbacked_symint()
    with FakeTensorMode() as mode:
        mode.from_tensor(_constant(lowering)) + 1
    constant = _constant(lowering)
    unsaid, results = constant + 1, constant * 3
    lowering.unsaid[id(unsaid)] = (unsaid, f"a constant is made with {symbol}")
    further = unsaid * 2
    made = SimpleNamespace(constants={"results": results}, frozen_param_names={})
    assert len(lowering.preparation(made, weights=[0]).steps) == 1
    with pytest.raises(NotPreparable, match="is made with u0"):
        lowering.preparation(SimpleNamespace(constants={"further": further}, frozen_param_names={}), weights=[0])


@pytest.mark.parametrize("read", [lambda x: x[0].item(), lambda x: torch.equal(x, x), lambda x: x.add_(1)])
def test_where_weights_decide_something_nothing_is_frozen(lowering: freezing._Recorder, read: Any) -> None:
    with pytest.raises(NotPreparable, match="while the graph is lowered"):
        read(_constant(lowering))
    # Whoever passes over that while the graph is lowered.
    with pytest.raises(NotPreparable, match="while the graph is lowered"):
        lowering.preparation(SimpleNamespace(constants={}, frozen_param_names={}), weights=[0])


def test_steps_of_which_nothing_is_taken_are_left_out() -> None:
    split, dead = Step(operator="aten::chunk", args=[Reference(0), 2]), Step(operator="aten::exp", args=[Reference(0)])
    item = Step(operator=ITEM, args=[Reference(1), 1])
    given = Preparation(
        weights=[4], forms=[], steps=[split, dead, item], results={"constant": Reference(3)}, sizes=[(2,)]
    )
    assert freezing._without_dead_steps(given) == Preparation(
        weights=[4], forms=[], steps=[split, item], results={"constant": Reference(2)}, sizes=[(2,)]
    )


def test_operators_of_other_libraries_are_not_run_on_synthetic_weights() -> None:
    ran: list[torch.Tensor] = []
    library = torch.library.Library("compilefarm_freezing", "DEF")
    library.define("measured(Tensor x) -> Tensor")
    library.impl("measured", lambda x: ran.append(x) or x.clone(), "CPU")
    try:
        graph = fx.Graph()
        halved = graph.call_function(torch.ops.aten.div.Tensor, (graph.get_attr("weight"), 2))
        graph.output(graph.call_function(torch.ops.compilefarm_freezing.measured.default, (halved,)))
        module = fx.GraphModule({"weight": torch.ones(2)}, graph)
        recorder = freezing._Recorder(held={}, made={"weight": Reference(0)}, forms=[(torch.float32, (2,), (1,))])
        folding: Any = importlib.import_module("torch._inductor.constant_folding")
        with recorder.recording():
            folding.constant_fold(module)
        assert [step.operator for step in recorder.steps] == ["aten::div.Tensor"]
        assert not ran
    finally:
        library._destroy()


def test_graphs_without_weights_are_lowered_as_ever() -> None:
    lowering: Any = importlib.import_module("torch._inductor.compile_fx")
    before = lowering.fx_codegen_and_compile
    with freezing_inputs([0]):
        assert lowering.fx_codegen_and_compile is not before
    with freezing_inputs([]):
        assert lowering.fx_codegen_and_compile is before
