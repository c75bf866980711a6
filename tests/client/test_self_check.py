"""A pod that holds programs of the farm to its own uncompiled graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

from compilefarm.client.comparison import compare
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.findings import Finding
from compilefarm.client.local import tensors_of
from compilefarm.client.records import Ledger
from compilefarm.client.runtime import Encoded
from compilefarm.client.self_check import SelfCheck
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, FarmServicer
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.manifest_pb2 import Manifest

Function = Callable[..., Any]


def held_to(graph_module: fx.GraphModule, program: Function, *inputs: Any) -> Finding:
    """What a comparison finds; it changes nothing."""
    held = tensors_of(graph_module)
    given = [value for value in (*inputs, *held) if isinstance(value, torch.Tensor)]
    before, state = [value.detach().clone() for value in given], torch.get_rng_state()
    finding = compare(program, eager=graph_module.forward, code=graph_module.code, inputs=inputs, held=held)
    assert all(map(torch.equal, given, before))
    assert torch.equal(torch.get_rng_state(), state)
    return finding


def is_right(right: Function, program: Function, *inputs: Any) -> str:
    return held_to(fx.symbolic_trace(right), program, *inputs).outcome


def matmul(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ y, (x * y).sum())


X, Y = torch.linspace(-1, 1, 64).view(8, 8), torch.linspace(0.5, 3, 64).view(8, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x.float() @ y.float()).to(dtype) if dtype != torch.float64 else x @ y, (x * y).flip(0).sum())

    assert is_right(matmul, program, X.to(dtype), Y.to(dtype)) == "same"


def _soft_margin(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((1 + (-x).exp()).log(),)


@pytest.mark.parametrize(("dtype", "outcome"), [(torch.float16, "same"), (torch.float32, "differs")])
def test_what_is_too_large_for_half_precision_need_not_be_inside_a_program(dtype: torch.dtype, outcome: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (_soft_margin(x.double())[0].to(dtype),)

    assert is_right(_soft_margin, program, torch.tensor([-90.0, 1.0, -20.0], dtype=dtype) * 4) == outcome


def test_what_a_graph_makes_infinite_has_to_be() -> None:
    def masked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.masked_fill(x > 1, float("-inf")),)

    assert is_right(masked, masked, X.half() * 2) == "same"
    assert is_right(masked, lambda x: (x.clamp(max=1),), X.half() * 2) == "differs"


def test_what_is_finite_in_half_precision_has_to_be() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (_soft_margin(x)[0] / 0,)

    assert is_right(_soft_margin, program, torch.tensor([1.0, 2.0], dtype=torch.float16)) == "differs"


def test_narrow_products_are_no_difference_where_they_are_allowed() -> None:
    """As of convolutions on a GPU, where torch allows TF32 by default and eager need not take it."""

    def right(x: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.conv1d(x, kernel),)

    def coarse(x: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.conv1d(x.half().float(), kernel.half().float()) * 1.002,)

    x, kernel = torch.rand(2, 3, 20), torch.rand(4, 3, 5)
    setting = torch.backends.mkldnn.conv
    assert is_right(right, coarse, x, kernel) == "differs"
    before, setting.fp32_precision = setting.fp32_precision, "tf32"
    try:
        assert is_right(right, coarse, x, kernel) == "same"
        assert is_right(right, lambda x, kernel: (torch.conv1d(x, kernel) * 1.03,), x, kernel) == "differs"
        assert is_right(lambda x: (x.sin(),), lambda x: (x.sin() * 1.002,), x) == "differs"
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, y: (y @ x, (x * y).sum()),
        lambda x, y: (x @ y, (x * y)[1:].sum()),
        lambda x, y: ((x @ y).index_fill(0, torch.tensor([7]), 0.0), (x * y).sum()),
        lambda x, y: (x @ y,),
        lambda x, y: (x @ y, (x * y).sum(0)),
        lambda x, y: ((x @ y) / 0, (x * y).sum()),
    ],
)
def test_what_is_wrong_is_a_difference(wrong: Function, dtype: torch.dtype) -> None:
    assert is_right(matmul, wrong, X.to(dtype), Y.to(dtype)) == "differs"


def test_integers_are_compared_exactly() -> None:
    x = torch.arange(10)
    assert is_right(lambda x: (x + 1,), lambda x: (x + 1,), x) == "same"
    assert is_right(lambda x: (x + 1,), lambda x: (x + (x == 9),), x) == "differs"


def test_a_program_that_raises_alone_is_wrong() -> None:
    assert is_right(lambda x: (x + 1,), lambda x: (x @ x.new_ones(99),), torch.ones(3)) == "differs"


def test_a_gradient_that_is_rounding_of_others_is_no_difference() -> None:
    """As that of a bias before a batch norm, which nothing depends on."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = x @ weight + bias
        return (y - y.mean(0)) * 300 / y.std(0)

    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor]:
        return (norm(x, weight, bias),)

    def in_another_order(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor]:
        return (norm(x.flip(0), weight, bias).flip(0),)

    def without_weight(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor]:
        result = norm(x, weight, bias)
        return (norm(x, weight.detach(), bias) + (result - result.detach()) * 0.9,)

    torch.manual_seed(0)
    inputs = torch.randn(64, 8), torch.randn(8, 8).requires_grad_(), torch.randn(8).requires_grad_()
    assert is_right(normed, in_another_order, *inputs) == "same"
    assert is_right(normed, without_weight, *inputs) == "differs"


def test_gradients_are_compared() -> None:
    def detached(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.detach() ** 2 + x - x.detach(),)

    x = torch.ones(3, requires_grad=True)
    assert is_right(lambda x: (x**2,), lambda x: (x * x,), x) == "same"
    assert is_right(lambda x: (x**2,), detached, x) == "differs"
    with torch.no_grad():
        assert is_right(lambda x: (x**2,), detached, x) == "same"


@pytest.mark.parametrize(("factor", "outcome"), [(2.0, "same"), (2.1, "differs")])
def test_gradients_with_few_elements_are_compared(factor: float, outcome: str) -> None:
    def embedding(weight: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.nn.functional.embedding(words, weight, sparse=True) * 2,)

    def program(weight: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor]:
        found = weight[words]
        return (found * factor - (found * (factor - 2)).detach(),)

    weight, words = torch.linspace(1, 2, 20).view(5, 4).requires_grad_(), torch.tensor([1, 3, 3])
    assert is_right(embedding, program, weight, words) == outcome


def test_what_inputs_are_afterwards_is_compared() -> None:
    x = torch.zeros(3)
    assert is_right(lambda x: (x.add_(1) * 1,), lambda x: (x.add_(1) * 1,), x) == "same"
    assert is_right(lambda x: (x.add_(1) * 1,), lambda x: (x + 1,), x) == "differs"


def test_inputs_that_share_memory_still_do() -> None:
    x = torch.zeros(4)

    def through_another(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        y.add_(1)
        return (x * 2,)

    def not_through_another(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        result = x * 2
        y.add_(1)
        return (result,)

    assert is_right(through_another, through_another, x, x[1:]) == "same"
    assert is_right(through_another, not_through_another, x, x[1:]) == "differs"


class Counting(nn.Module):
    """Updates a tensor that it holds, as optimizers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        torch._foreach_add_([self.steps], 1)
        return (x * 2,)


def test_a_tensor_of_the_graph_that_is_not_updated_is_a_difference() -> None:
    class Tracer(fx.Tracer):
        proxy_buffer_attributes = True

    root = Counting()
    module = fx.GraphModule(root, Tracer().trace(root))
    assert "_foreach_add_" in module.code
    assert held_to(module, module.forward, torch.ones(2)).outcome == "same"
    finding = held_to(module, lambda x: (x * 2,), torch.ones(2))
    assert finding.outcome == "differs"
    assert "of the graph afterwards" in finding.detail


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (nn.functional.dropout(x),),
        lambda x: (torch.empty_like(x),),
    ],
)
def test_what_right_programs_may_differ_in_is_not_compared(function: Function) -> None:
    def other(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * 3,)

    assert is_right(function, other, torch.ones(3)) == "skipped"


def reported(servicer: FarmServicer) -> list[wire.SelfCheckReport]:
    while not servicer.self_checks:
        assert servicer.reported.wait(30)
        servicer.reported.clear()
    return servicer.self_checks


@pytest.mark.parametrize(
    ("finding", "places"),
    [
        (Finding(outcome="same"), ["farm", "farm"]),
        (Finding(outcome="skipped", detail="it draws"), ["farm", "farm"]),
        (Finding(outcome="differs", detail="result 0 differs"), ["local", "local"]),
    ],
)
def test_a_program_that_differs_is_not_used_and_the_farm_hears_of_it(
    finding: Finding, places: list[str], address: str, servicer: FarmServicer, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, runtime = Ledger(), FakeRuntime()
    runtime.finding = finding
    farm = Farm(address, self_check=1, dependencies=Dependencies(runtime=runtime, ledger=ledger))
    program = farm.backend(FakeGraphModule(), [])
    assert [program()[0], program()[0]] == places
    (record,) = ledger.records()
    assert record.self_check == finding
    assert record.resort == ("local" if finding.outcome == "differs" else None)
    (report,) = reported(servicer)
    word = wire.SelfCheckOutcome.Name(report.outcome).removeprefix("SELF_CHECK_OUTCOME_").lower()
    assert (report.key, word, report.detail) == (record.key, finding.outcome, finding.detail)
    errors = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert len(errors) == (finding.outcome == "differs")
    farm.close()


def without_compiler(runtime: FakeRuntime) -> None:
    runtime.obstacle = "there is no g++"


def with_symbols(runtime: FakeRuntime) -> None:
    runtime.late_obstacle = "its sizes differ from call to call"


def failing(runtime: FakeRuntime) -> None:
    runtime.local_error = RuntimeError("no lowering")


@pytest.mark.parametrize(
    ("prepare", "settings", "obstacle"),
    [
        (without_compiler, {}, "there is no g++"),
        (with_symbols, {}, "its sizes differ from call to call"),
        (failing, {}, "RuntimeError: no lowering"),
        (lambda _: None, {"on_failure": "eager"}, "on_failure says so"),
        (lambda _: None, {"on_failure": "error"}, "on_failure says so"),
    ],
)
def test_where_no_compile_is_possible_the_uncompiled_graph_takes_its_place(
    prepare: Callable[[FakeRuntime], None],
    settings: dict[str, Any],
    obstacle: str,
    address: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, runtime = Ledger(), FakeRuntime()
    runtime.finding = Finding(outcome="differs", detail="result 0 differs")
    prepare(runtime)
    farm = Farm(address, self_check=1, dependencies=Dependencies(runtime=runtime, ledger=ledger), **settings)
    program = farm.backend(FakeGraphModule(), [])
    assert [program()[0], program()[0]] == ["eager", "eager"]
    (record,) = ledger.records()
    assert (record.outcome, record.resort, record.obstacle) == ("compiled", "eager", obstacle)
    assert "computes something else: result 0 differs" in caplog.text
    farm.close()


class WrongPrograms(TorchRuntime):
    """The torch of this process, with programs of the farm that compute nothing."""

    def require_fit(self, manifest: Manifest, environment: Environment) -> None:
        """What a scripted farm has fits everywhere."""

    def load(self, encoded: Encoded, manifest: Manifest, **_: Any) -> Function:
        return lambda *inputs: [torch.zeros(3)]


@pytest.mark.parametrize(("dynamic", "resort"), [(False, "local"), (True, "eager")])
def test_a_graph_is_compiled_here_in_the_middle_of_its_first_call(
    dynamic: bool, resort: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_graph(graph_module: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Function:
        compiled.append(example_inputs)
        return graph_module.forward

    compiled: list[Sequence[Any]] = []
    monkeypatch.setattr("compilefarm.client.captured_graph.compile_graph", compile_graph)
    monkeypatch.setattr("compilefarm.client.compilers._obstacle", lambda _: "")
    ledger = Ledger()
    farm = Farm(address, self_check=1, dependencies=Dependencies(runtime=WrongPrograms(), ledger=ledger))
    torch.compiler.reset()
    program = torch.compile(lambda x: x.sin() * 2, backend=farm.backend, dynamic=dynamic)
    x = torch.linspace(0, 1, 3, requires_grad=True)
    for _ in range(2):
        x.grad = None
        result = program(x)
        torch.testing.assert_close(result, x.sin() * 2)
        result.sum().backward()
        torch.testing.assert_close(x.grad, x.cos() * 2)
    (record,) = ledger.records()
    assert (record.resort, len(compiled)) == (resort, 0 if dynamic else 1)
    farm.close()


def test_what_operators_have_made_may_be_written_to() -> None:
    x = torch.ones(3, requires_grad=True) * 1
    assert is_right(lambda x: (x.mul_(2) ** 2,), lambda x: (x.mul_(2) * x,), x) == "same"
    assert is_right(lambda x: (x.mul_(2) ** 2,), lambda x: (x.mul_(2) * x.detach(),), x) == "differs"


def test_an_input_that_has_gradients_only_afterwards_is_no_leaf() -> None:
    def filling(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        x[1:].copy_(w[1:] * 3)
        return (x.sum(0) * w,)

    def filling_a_copy(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        filled = torch.cat([x[:1], w[1:] * 3])
        x.copy_(filled)
        return (filled.sum(0) * w,)

    w = torch.linspace(-1.0, 1.0, 6).view(3, 2).requires_grad_()
    assert is_right(filling, filling_a_copy, torch.ones(3, 2), w) == "same"


def test_nothing_is_compared_unless_that_is_asked_for(address: str) -> None:
    ledger, runtime = Ledger(), FakeRuntime()
    runtime.finding = Finding(outcome="differs")
    farm = Farm(address, dependencies=Dependencies(runtime=runtime, ledger=ledger))
    assert farm.backend(FakeGraphModule(), [])()[0] == "farm"
    assert ledger.records()[0].self_check is None
    farm.close()


def test_a_wrong_program_is_not_called_while_another_is_made() -> None:
    meanwhile = []

    class Compiling:
        def replace(self, *_: Any, **__: Any) -> Function:
            if not meanwhile:
                meanwhile.append("begun")
                meanwhile.append(program())
            return lambda: "local"

    runtime, ledger = FakeRuntime(), Ledger()
    runtime.finding = Finding(outcome="differs", detail="by much")
    check = SelfCheck(fraction=1.0, resorts=Compiling(), report=lambda *_: None)  # type: ignore[arg-type]  # as much as it uses
    writer = ledger.open(name="", nodes=1, clock=FakeClock())
    program = check.watch(lambda: "farm", graph=runtime.local_graph(FakeGraphModule(), [], options=dict), writer=writer)
    assert program() == "local"
    assert meanwhile == ["begun", "local"]
