"""The client under the real torch: modes, options, outputs, and Dynamo calling the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from compilefarm.client import backend as entry_point
from compilefarm.client.config import ConfigurationError
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import Options, merge_options
from compilefarm.client.programs import Program
from compilefarm.client.records import Ledger
from compilefarm.client.requests import save_request
from compilefarm.client.runtime import Encoded
from compilefarm.client.saving import SavableProgram
from compilefarm.client.testing import FakeGraphModule, FakeLocalGraph, FakeRuntime, FarmServicer, serving
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.options import capture_options
from compilefarm.torch_internals.saving import SerializableCallable
from compilefarm.v1.manifest_pb2 import Manifest


class EagerRuntime(FakeRuntime):
    """Programs that run the graph as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[fx.GraphModule] = []
        self.options: list[dict[str, object]] = []

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        self.graphs.append(graph_module)
        self.options.append(dict(options))
        return super().encode(FakeGraphModule(graph_module.code), example_inputs, options=options)

    def load(self, encoded: Encoded, manifest: Manifest, **_: Any) -> Program:
        program: Program = self.graphs[-1].forward
        return program

    def local_graph(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]
    ) -> LocalGraph:
        return EagerGraph(self, graph_module.forward)


class EagerGraph(FakeLocalGraph):
    """A graph that runs as it is, compiled or not."""

    def eager(self) -> Program:
        return self.compile()


@pytest.fixture
def address() -> Iterator[str]:
    with serving(FarmServicer()) as address:
        yield address


@pytest.fixture
def runtime() -> EagerRuntime:
    return EagerRuntime()


@pytest.fixture
def farm(address: str, runtime: EagerRuntime) -> Iterator[Farm]:
    farm = Farm(address, dependencies=Dependencies(runtime=runtime, ledger=Ledger()))
    yield farm
    farm.close()
    torch.compiler.reset()


def test_modes_are_torchs_own() -> None:
    assert merge_options(mode="max-autotune-no-cudagraphs", options=None) == torch._inductor.list_mode_options(
        "max-autotune-no-cudagraphs"
    )
    assert merge_options(mode="default", options={"max-autotune": True}) == {"max_autotune": True}
    assert merge_options(mode=None, options=None) == {}


def test_options_win_over_the_mode() -> None:
    merged = merge_options(mode="max-autotune", options={"max_autotune": False})
    assert merged["max_autotune"] is False
    assert merged["triton.cudagraphs"] is True


def test_an_unknown_mode_is_refused_as_torch_refuses_it() -> None:
    with pytest.raises(RuntimeError, match="Unrecognized mode=fast"):
        merge_options(mode="fast", options=None)


def refuse(options: dict[str, Any]) -> str:
    """What torch.compile with the backend of a farm raises; the farm is not asked."""
    farm = Farm("127.0.0.1:9", dependencies=Dependencies(ledger=Ledger()))
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="has no Inductor option") as caught:
        torch.compile(torch.nn.ReLU(), backend=farm.backend, options=options)(torch.ones(1))
    return str(caught.value)


def test_an_unknown_option_is_refused_as_torch_refuses_it(tmp_path: Path) -> None:
    assert "'max_autotne': did you mean 'max_autotune'?" in refuse({"max-autotne": True})
    assert "'trition.cudagraphs': did you mean 'triton.cudagraphs'?" in refuse({"trition.cudagraphs": True})
    assert "'fastest'; torch._inductor.list_options() has all" in refuse({"fastest": True})
    graph = fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(RuntimeError, match="did you mean 'max_autotune'"):
        save_request(graph, [torch.ones(1)], tmp_path / "graph.cfreq", options={"max_autotne": True})


def test_an_option_of_a_device_that_torch_does_not_know_is_left_to_torch() -> None:
    options = {"of_a_plugin.level": 3, "epilogue_fusion": False}
    TorchRuntime().require_known_options(options)
    with pytest.raises(Bypass, match="of_a_plugin"):
        capture_options(options, cuda=False)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"mode": "max-autotune-no-cudagraphs"}, {"max_autotune": True, "coordinate_descent_tuning": True}),
        ({"options": {"epilogue_fusion": False}}, {"epilogue_fusion": False}),
    ],
)
def test_dynamo_hands_over_graphs_modes_and_options(
    farm: Farm, runtime: EagerRuntime, settings: dict[str, Any], options: dict[str, object]
) -> None:
    model = torch.nn.Linear(4, 4)
    compiled = torch.compile(model, backend=farm.backend, **settings)
    value = torch.randn(2, 4)
    torch.testing.assert_close(compiled(value), model(value))
    torch.testing.assert_close(compiled(value), model(value))
    assert runtime.options == [options]


@pytest.mark.skipif("name" not in torch.compile.__kwdefaults__, reason="this torch.compile takes no name=")
def test_the_name_of_torch_compile_is_accepted(farm: Farm) -> None:
    compiled = torch.compile(torch.nn.ReLU(), backend=farm.backend, name="block")
    assert compiled(torch.ones(1)).item() == 1


def test_the_entry_point_reads_the_environment(
    address: str, runtime: EagerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Farm] = []

    def make() -> Farm:
        made.append(Farm(dependencies=Dependencies(runtime=runtime, ledger=Ledger())))
        return made[-1]

    monkeypatch.setattr(entry_point, "_farm", None)
    monkeypatch.setattr(entry_point, "Farm", make)
    monkeypatch.setenv("COMPILEFARM_ADDRESS", address)
    for _ in range(2):
        model = torch.compile(torch.nn.Linear(4, 4), backend="compilefarm", mode="max-autotune-no-cudagraphs")
        assert model(torch.randn(2, 4)).shape == (2, 4)
        torch.compiler.reset()
    # One for the process, which remembers where nobody answers.
    assert len(made) == 1
    assert runtime.local_compiles == 0
    assert len(runtime.graphs) == 2
    entry_point.farm_of_process().close()


def test_the_entry_point_says_what_the_environment_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_point, "_farm", None)
    monkeypatch.delenv("COMPILEFARM_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match="set COMPILEFARM_ADDRESS=host:port"):
        entry_point.compilefarm(FakeGraphModule(), [])


def one_value(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


def tuple_of_one(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x.relu() + 1,)


@pytest.mark.parametrize("function", [one_value, tuple_of_one])
def test_a_graph_returns_what_it_returned_before(
    farm: Farm, runtime: EagerRuntime, function: Callable[[torch.Tensor], Any]
) -> None:
    graph_module = fx.symbolic_trace(function)
    code = graph_module.code
    value = torch.tensor([-1.0, 2.0])
    found = farm.compile(graph_module, [value], options={"max-autotune": True})(value)
    torch.testing.assert_close(found, function(value))
    assert type(found) is type(function(value))
    assert graph_module.code == code
    (sent,) = runtime.graphs
    assert isinstance(next(iter(reversed(sent.graph.nodes))).args[0], tuple)
    assert runtime.options == [{"max_autotune": True}]


def _exported(module: torch.nn.Module, given: torch.Tensor) -> Any:
    return torch.export.export(module, (given,)).module()


@pytest.mark.parametrize("capture", [lambda module, _: fx.symbolic_trace(module), _exported])
def test_a_graph_that_calls_modules_is_traced_into_them(
    farm: Farm, runtime: EagerRuntime, capture: Callable[[torch.nn.Module, torch.Tensor], Any]
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.ReLU()).eval()
    value = torch.randn(4, 3)
    program = farm.compile(capture(module, value), [value], options={"max-autotune": True})
    torch.testing.assert_close(program(value), module(value))
    (sent,) = runtime.graphs
    assert not sent.graph.find_nodes(op="call_module")
    assert runtime.options == [{"max_autotune": True}]


class _Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scales: dict[str, torch.Tensor], shift: torch.Tensor) -> dict[str, Any]:
        return {"scaled": [x * scales["a"] + shift, x - scales["b"]], "none": None}


@pytest.mark.parametrize("check_guards", [True, False], ids=["with guards", "without guards"])
def test_an_exported_module_is_called_by_name_as_it_was_exported(farm: Farm, check_guards: bool) -> None:
    x, a, b, shift = (torch.full((3,), float(number)) for number in (5, 2, 3, 7))
    exported = torch.export.export(_Named(), (x,), {"scales": {"a": a, "b": b}, "shift": shift})
    program = farm.compile(exported.module(check_guards=check_guards), [x, a, b, shift])
    # Of a dictionary, what was exported says the order.
    found = program(x, shift=shift, scales={"b": b, "a": a})
    assert found.keys() == {"scaled", "none"}
    torch.testing.assert_close(found["scaled"], [x * a + shift, x - b])
    with pytest.raises((TypeError, ValueError), match="others"):
        program(x, others=x)


def test_a_traced_graph_is_called_by_name(farm: Farm) -> None:
    program = farm.compile(fx.symbolic_trace(lambda x, y: x - y), [torch.ones(2), torch.ones(2)])
    torch.testing.assert_close(program(y=torch.ones(2), x=torch.zeros(2)), -torch.ones(2))


def test_the_changed_graph_shares_its_parameters(farm: Farm, runtime: EagerRuntime) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    graph_module = fx.symbolic_trace(Scaled())
    farm.compile(graph_module, [torch.ones(2)])
    (sent,) = runtime.graphs
    assert sent.scale is graph_module.scale


class _Specialized(torch.nn.Module):
    """Dynamo makes what it has attributes of graphs."""

    torchdynamo_force_dynamic = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.plain


_ASSUMED = torch.ones(3)


@torch.compiler.assume_constant_result
def _assumed() -> torch.Tensor:
    return _ASSUMED


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (_Specialized(), {}),
        (lambda x: x + _assumed(), {}),
        (lambda x: x + _ASSUMED, {"install_free_tensors": True}),
    ],
    ids=["of a module", "assumed", "free"],
)
def test_what_dynamo_has_graphs_hold_is_read_at_each_call(model: Any, settings: dict[str, Any]) -> None:
    """It may belong to others, too, who may change it between two calls."""
    encoded: list[Encoded] = []

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        encoded.append(TorchRuntime().encode(graph_module, example_inputs, options={}))
        forward: Callable[..., Any] = graph_module.forward
        return forward

    torch.compiler.reset()
    with torch._dynamo.config.patch(**settings):
        torch.compile(model, backend=backend)(torch.ones(3))
    assert not encoded[0].job.graph.constants
    assert len(encoded[0].held) == len(encoded[0].job.inputs) - 1 > 0


def test_an_unreachable_farm_costs_a_graph_nothing_but_time(runtime: EagerRuntime) -> None:
    ledger = Ledger()
    farm = Farm("no-such-host.invalid:1", dependencies=Dependencies(runtime=runtime, ledger=ledger))
    value = torch.tensor([-1.0, 2.0])
    torch.testing.assert_close(farm.compile(fx.symbolic_trace(one_value), [value])(value), one_value(value))
    assert [record.reason for record in ledger.records()] == ["unreachable"]


@pytest.mark.compiles
def test_without_a_farm_the_model_is_compiled_by_inductor_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    farm = Farm("no-such-host.invalid:1", dependencies=Dependencies(ledger=ledger))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    value = torch.randn(2, 4)
    with torch.no_grad():
        found = torch.compile(model, backend=farm.backend, options={"epilogue_fusion": False})(value)
        torch.testing.assert_close(found, model(value))
    torch.compiler.reset()
    (record,) = ledger.records()
    assert (record.outcome, record.reason) == ("fallback", "unreachable")
    assert set(record.seconds) == {"encode", "wait", "local"}
    (line,) = (entry.getMessage() for entry in caplog.records if entry.name == "compilefarm.client")
    assert "no-such-host.invalid:1 cannot be reached: check that it runs" in line


def test_what_torch_asks_of_a_program_that_it_saves() -> None:
    # torch/_dynamo/aot_compile_types.py: SerializableCallable. Without it nothing compiled ahead of time can be saved.
    wanted = {"serialize_compile_artifacts", "deserialize_compile_artifacts", "__call__"}
    assert SerializableCallable.__abstractmethods__ == wanted
    program = SavableProgram(lambda x: [x], encoded=None)
    assert isinstance(program, SerializableCallable)
    with pytest.raises(Bypass, match="cannot be sent to a farm"):
        SavableProgram.serialize_compile_artifacts(program)
