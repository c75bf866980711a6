"""What a verifier finds wrong with an artifact. Programs that stand in for a loaded artifact do what a test wants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch._inductor.runtime.benchmarking import benchmarker

from compilefarm.graph.admission import Admitted
from compilefarm.graph.testing import capture
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker import eager, verify
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.inputs import random_inputs
from tests.worker.verifying import checked, encoded_of

triton = pytest.importorskip("triton")

Program = Callable[..., Any]


def model(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    calls.add_(1)
    return (weight * x).sin()


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (weight * x).sin()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] * x, None


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier takes compilers out of its process, and counts what that compiles, for good."""
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(triton, "compile", lambda: "a kernel")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], Verification]:
    """Verifies a program as if it were the artifact of `model`."""
    weight = torch.nn.Parameter(torch.rand(3, 4))
    encoded = capture(model, torch.zeros(2), weight, torch.rand(3, 4)).encode()
    # Kernels of Triton are counted where a graph has a GPU.
    encoded.job.environment.cuda.name = "a GPU"

    def run(program: Program) -> Verification:
        monkeypatch.setattr(verify, "load_artifact", lambda *_, **__: lambda *inputs: [program(*inputs)])
        return verify.verify_task(VerifyTask(job=encoded.job), admitted=Admitted())

    return run


def test_what_does_the_same_passes_with_its_figures(check: Callable[[Program], Verification]) -> None:
    verification = check(model)
    assert verification.largest_difference == 0
    assert verification.not_compared == ""
    assert verification.call_seconds > 0


def _wrong_output(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls, weight, x) * 1.1


def _wrong_gradient(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    calls.add_(1)
    result: torch.Tensor = _WrongBackward.apply(weight, x)
    return result


def _without_backward(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls, weight, x).detach()


def _without_the_write(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls.clone(), weight, x)


def _with_a_program(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    subprocess.run(["/bin/true"], check=True)
    return model(calls, weight, x)


def _with_a_fork(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return model(calls, weight, x)


def _with_a_kernel(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    triton.compile()
    return model(calls, weight, x)


def _with_a_choice(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    # Once by itself, and once by way of what picks the device.
    benchmarker.benchmark_cpu(lambda: None, warmup=0, rep=0)
    benchmarker.benchmark(lambda: None, device="cpu", warmup=0, rep=0)
    return model(calls, weight, x)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (_wrong_output, "output 0 differs from eager"),
        (_wrong_gradient, "gradient of input 1 differs from eager"),
        (_without_backward, "gradient of input 1"),
        (_without_the_write, "input 0 afterwards differs from eager"),
        (_with_a_program, "started programs: 1 x /bin/true"),
        (_with_a_fork, "started programs: 1 x os.fork"),
        (_with_a_kernel, "compiled 1 kernels and measured 0"),
        (_with_a_choice, "compiled 0 kernels and measured 2"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[Program], Verification], program: Program, reason: str) -> None:
    with pytest.raises(VerificationFailed, match=reason):
        check(program)


def _partly_detached(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.cos(), x.detach().sin()


def _with_a_step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.cos(), x.sign()


@pytest.mark.parametrize(
    ("model", "program", "reason"),
    [
        # Gradients of nothing, so that those of the input are what they should be.
        (_partly_detached, lambda x: [x.cos(), x.detach().sin() + x * 0], "wants gradients, and eager's does not"),
        (_with_a_step, lambda x: [x.cos(), x.sign().detach()], "wants no gradients, and eager's does"),
    ],
)
def test_which_results_want_gradients_is_compared(model: Program, program: Program, reason: str) -> None:
    encoded = encoded_of(model, torch.rand(3, requires_grad=True), trains=True)
    with pytest.raises(VerificationFailed, match=f"output 1 {reason}"):
        checked(encoded, lambda _: program)


def _ranking(x: torch.Tensor, equal: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values, what comes in their order, and what comes in the order of elements many of which are the same."""
    return x.sin().sort().values, x.cos()[x.argsort()], x[equal.round().argsort()]


def _ranking_from_the_last(x: torch.Tensor, equal: torch.Tensor) -> list[torch.Tensor]:
    order = 49 - equal.round().flip(0).sort(stable=True).indices
    return [*_ranking(x, equal)[:2], x[order]]


def test_which_of_equal_elements_comes_first_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.rand(50), torch.rand(50)
    assert _verified(monkeypatch, _ranking, *inputs, program=_ranking_from_the_last).compared == 5


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda values: values.flip(0)),
        (0, lambda values: values * 1.1),
        (1, lambda values: values.roll(1)),
        (2, lambda values: values * 1.1),
    ],
)
def test_the_order_of_what_a_graph_sorts_is_not(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with pytest.raises(VerificationFailed, match=f"output {number} differs"):
        _verified(monkeypatch, _ranking, torch.rand(50), torch.rand(50), program=_changed(_ranking, number, change))


def test_a_stable_sort_has_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def stable(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x[x.round().sort(stable=True).indices],)

    def unstable(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[49 - x.round().flip(0).sort(stable=True).indices]]

    with pytest.raises(VerificationFailed, match="output 0 differs"):
        _verified(monkeypatch, stable, torch.rand(50), program=unstable)


def _verified(
    monkeypatch: pytest.MonkeyPatch,
    model: Callable[..., Any],
    *inputs: Any,
    program: Callable[..., Any],
    options: Mapping[str, object] | None = None,
) -> Verification:
    """What the verifier finds of a program as the artifact of a model."""
    encoded = capture(model, *inputs).encode(options=options)
    monkeypatch.setattr(verify, "load_artifact", lambda *_, **__: lambda *given: list(program(*given)))
    return verify.verify_task(VerifyTask(job=encoded.job), admitted=Admitted())


def _changed(model: Callable[..., Any], number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    """The model with one of its outputs changed."""

    def program(*given: Any) -> list[torch.Tensor]:
        outputs = list(model(*given))
        outputs[number] = change(outputs[number])
        return outputs

    return program


def _first(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The tensor with its first elements inverted or one larger."""
    changed = tensor.clone().flatten()
    changed[:count] = ~changed[:count] if tensor.dtype == torch.bool else changed[:count] + 1
    return changed.view(tensor.shape)


def _of_many_kinds(scales: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # A float of 24 bits decides about the last digits of numbers this large.
    steps = (scales * 1e9).round().long()
    return x.sin().argmax(-1), x > 0, torch.complex(x, x.sin()), steps, torch.arange(2000)


_INPUTS = torch.rand(1000), torch.rand(20, 100)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda ranks: ranks + 1),
        (0, lambda ranks: _first(ranks, 1)),
        (1, torch.logical_not),
        (1, lambda mask: _first(mask, 3)),
        (2, lambda spectrum: spectrum.conj()),
        (2, lambda spectrum: spectrum * 1.1),
        (3, lambda steps: steps + steps // 10),
        (4, lambda numbers: numbers.flip(0)),
    ],
)
def test_numbers_of_every_kind_are_compared(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    program = _changed(_of_many_kinds, number, change)
    with pytest.raises(VerificationFailed, match=f"output {number} differs from eager"):
        _verified(monkeypatch, _of_many_kinds, *_INPUTS, program=program)


@pytest.mark.parametrize(
    ("number", "change", "differing"),
    [
        (1, lambda mask: mask, 0),
        # As many as one in a thousand.
        (1, lambda mask: _first(mask, 2), 2),
        (2, lambda spectrum: spectrum * 1.000001, 0),
        (3, lambda steps: _first(steps, 1000), 1000),
    ],
)
def test_what_last_bits_decide_may_differ(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[torch.Tensor], torch.Tensor], differing: int
) -> None:
    program = _changed(_of_many_kinds, number, change)
    found = _verified(monkeypatch, _of_many_kinds, *_INPUTS, program=program)
    assert found.differing_integers == differing
    assert found.compared == 7


def test_last_bits_are_those_of_the_coarsest_floats_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x.bfloat16() * 100).round().long(),)

    def fine(x: torch.Tensor) -> tuple[torch.Tensor]:
        """As a fused kernel may do it, which rounds less often."""
        return ((x * 100).round().long(),)

    x = torch.rand(5000)
    assert _verified(monkeypatch, coarse, x, program=fine).differing_integers > 100
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        _verified(monkeypatch, coarse, x, program=_changed(fine, 0, lambda steps: steps * 2))
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        _verified(monkeypatch, fine, x, program=coarse)


def _steps_at(threshold: float) -> Program:
    """Adds 7 wherever three times an element is larger."""

    def steps(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * 3 > threshold).float() * 7,)

    return steps


def test_a_step_may_be_taken_where_a_last_bit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(1000)
    (made,) = random_inputs(capture(_steps_at(1.0), x).encode().job, seed=eager.INPUT_SEED, fillers={})
    assert isinstance(made, torch.Tensor)
    # Eager and its reference are both above it, and eager by two last bits.
    threshold = float(made[0] * 3 * (1 - 2**-22))
    steps = _steps_at(threshold)

    def nearly(x: torch.Tensor) -> tuple[torch.Tensor]:
        return steps(x * (1 - 2**-21))

    def in_many_places(x: torch.Tensor) -> tuple[torch.Tensor]:
        (given,) = steps(x)
        return (torch.cat([7 - given[:100], given[100:]]),)

    assert int((nearly(made)[0] != steps(made)[0]).sum()) == 1
    assert _verified(monkeypatch, steps, x, program=nearly).largest_difference == 7
    with pytest.raises(VerificationFailed, match="output 0 differs from eager by 7"):
        _verified(monkeypatch, steps, x, program=in_many_places)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-3), (torch.bfloat16, 5e-2), (torch.float16, 2e-2)],
)
def test_tolerances_without_a_reference_are_those_of_the_dtype(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(eager, "find_reference", lambda *_, **__: None)

    def doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + x,)

    def off_by(share: float) -> Verification:
        def change(output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[0] += share * output.abs().max()
            return changed

        return _verified(monkeypatch, doubled, torch.ones(100, dtype=dtype), program=_changed(doubled, 0, change))

    assert off_by(0.85 * tolerance).relative_tolerance == tolerance
    with pytest.raises(VerificationFailed, match=f"{tolerance:.0e} of that is allowed"):
        off_by(1.15 * tolerance)


def _dropping(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nn.functional.dropout(x, 0.5), torch.rand(3), x.sin()


def _drawing_otherwise(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As Inductor does: the same under one seed, but not what eager draws."""
    torch.rand(1)
    return _dropping(x)


def test_of_a_random_graph_all_that_no_seed_changes_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(50)
    found = _verified(monkeypatch, _dropping, x, program=_drawing_otherwise)
    assert (found.compared, found.compared_by_seed, found.unsteady) == (2, 2, 0)
    assert found.not_compared == ""
    wrong = _changed(_drawing_otherwise, 2, lambda output: output * 1.1)
    with pytest.raises(VerificationFailed, match="output 2 differs from eager"):
        _verified(monkeypatch, _dropping, x, program=wrong)


_unseeded = torch.Generator()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda output: output + torch.rand(50, generator=_unseeded), "output 0 is random, and differs"),
        (lambda output: output / 0, "output 0 is not finite where eager is"),
        (lambda output: output[1:], r"output 0 is \[49\] instead of \[50\]"),
        (lambda output: output.double(), "output 0 is of another kind"),
    ],
)
def test_random_results_are_held_to_what_can_be_said_of_them(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    with pytest.raises(VerificationFailed, match=reason):
        _verified(monkeypatch, _dropping, torch.rand(50), program=_changed(_drawing_otherwise, 0, change))


def test_what_draws_as_eager_does_is_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"fallback_random": True}
    x = torch.rand(50)
    assert _verified(monkeypatch, _dropping, x, program=_dropping, options=options).compared == 4
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        _verified(monkeypatch, _dropping, x, program=_drawing_otherwise, options=options)


def _dropping_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As in a checkpoint, where what was dropped at first is dropped when the gradients are computed, too."""
    return (torch.nn.functional.dropout(x, 0.5) * x,)


def _checkpointed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = torch.utils.checkpoint.checkpoint(_dropping_twice, x, use_reentrant=False)
    return results


def test_checkpoints_of_eager_drop_the_same_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(50, requires_grad=True)
    options = {"fallback_random": True}
    found = _verified(monkeypatch, _checkpointed, x, program=_dropping_twice, options=options)
    assert (found.compared, found.compared_by_seed) == (2, 0)


def _normed(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, calls: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    calls.add_(1)
    return (torch.nn.functional.batch_norm(x, mean, variance, training=True) * calls,)


def _checkpointed_norm(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = torch.utils.checkpoint.checkpoint(_normed, *given, use_reentrant=False)
    return results


def test_checkpoints_of_eager_write_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiled program does, which computes again what it needs and writes nothing then."""
    given = torch.rand(4, 3, requires_grad=True), torch.zeros(3), torch.ones(3), torch.tensor(1.0)
    found = _verified(monkeypatch, _checkpointed_norm, *given, program=_normed)
    assert (found.compared, found.not_compared) == (5, "")


def _unrepeatable(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.cos()


def test_what_eager_gives_otherwise_each_time_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As memory that nobody wrote to. What differs by last bits alone, as sums of no set order, is compared."""
    runs = iter(range(100))

    def eager(x: torch.Tensor) -> list[torch.Tensor]:
        run = next(runs)
        return [x.sin() + run, x.cos() + 1e-6 * run]

    decode = verify.decode

    def decode_unrepeatable(*given: Any, **named: Any) -> Any:
        decoded = decode(*given, **named)
        monkeypatch.setattr(decoded.graph_module, "forward", eager)
        return decoded

    monkeypatch.setattr(verify, "decode", decode_unrepeatable)
    found = _verified(monkeypatch, _unrepeatable, torch.rand(50), program=_unrepeatable)
    assert (found.compared, found.compared_by_seed, found.unsteady) == (2, 0, 1)
    wrong = _changed(_unrepeatable, 1, lambda output: output * 1.1)
    with pytest.raises(VerificationFailed, match="output 1 differs from eager"):
        _verified(monkeypatch, _unrepeatable, torch.rand(50), program=wrong)


def test_what_differs_from_run_to_run_by_last_bits_has_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the gradients of convolutions on a GPU, of which eager may be as far from the truth as the artifact is."""

    def cancelled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x + 1e3) + x.sin() - (x + 1e3),)

    runs = iter(range(100))

    def shifting(x: torch.Tensor) -> list[torch.Tensor]:
        shift = 1e3 + 100 * next(runs)
        return [(x + shift) + x.sin() - (x + shift)]

    decode = verify.decode

    def decode_shifting(*given: Any, **named: Any) -> Any:
        decoded = decode(*given, **named)
        monkeypatch.setattr(decoded.graph_module, "forward", shifting)
        return decoded

    monkeypatch.setattr(verify, "decode", decode_shifting)

    def otherwise(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 2e3) + x.sin() - (x + 2e3)]

    found = _verified(monkeypatch, cancelled, torch.rand(1000), program=otherwise)
    assert (found.compared, found.referenced, found.unsteady) == (2, 1, 0)
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        _verified(monkeypatch, cancelled, torch.rand(1000), program=lambda x: [x.sin() * 1.05])


def _picking(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.bfloat16().sin()
    return y.argmax(-1), y.topk(3).indices, y.sort(-1)[1]


def _picking_exactly(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As a kernel that does not round does it."""
    y = x.double().sin()
    return y.argmax(-1), y.topk(3).indices, y.sort(-1)[1]


def test_of_values_that_are_nearly_equal_either_may_be_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's floats moved by a few last bits show only some of them."""
    monkeypatch.setattr(eager, "_PERTURBATION_SEEDS", ())
    x = torch.rand(200, 400)
    assert _verified(monkeypatch, _picking, x, program=_picking_exactly).differing_integers > 200


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda picked: (picked + 1) % 400),
        (0, lambda picked: picked - 400),
        (1, lambda picked: picked[..., :1].expand(-1, 3).clone()),
        (2, lambda order: order.roll(100, -1)),
    ],
)
def test_what_is_picked_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    program = _changed(_picking_exactly, number, change)
    with pytest.raises(VerificationFailed, match=f"output {number} differs from eager"):
        _verified(monkeypatch, _picking, torch.rand(200, 400), program=program)


def _with_memory_of_nobody(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    unwritten = torch.empty_like(x)
    halves = x.new_empty(2, 50)
    halves[0] = x
    written = torch.empty(50)
    written.copy_(x.sin())
    return unwritten + x, halves, written, halves[0] * 2


def test_memory_that_nobody_wrote_to_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand(50), torch.stack([x, torch.rand(50)]), x.sin(), x * 2]

    found = _verified(monkeypatch, _with_memory_of_nobody, torch.rand(50), program=program)
    assert (found.compared, found.unsteady) == (4, 1)
    for number in (1, 3):
        wrong = _changed(program, number, lambda output: output * 1.1)
        with pytest.raises(VerificationFailed, match=f"output {number} differs from eager"):
            _verified(monkeypatch, _with_memory_of_nobody, torch.rand(50), program=wrong)


def _resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    aten = torch.ops.aten
    return aten.resize(x, [60]), aten.resize_as(x, x.new_zeros(60)), aten.resize(x, [4, 5])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_of_what_is_resized_all_that_was_there_is_compared(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.cat([x, torch.rand(10)]), torch.cat([x, torch.rand(10)]), x[:20].view(4, 5)]

    found = _verified(monkeypatch, _resized, torch.rand(50), program=program)
    assert (found.compared, found.unsteady) == (4, 0)
    wrong = _changed(program, number, lambda output: output.index_fill(0, torch.tensor([3]), 2.0))
    with pytest.raises(VerificationFailed, match=f"output {number} differs from eager"):
        _verified(monkeypatch, _resized, torch.rand(50), program=wrong)


def _embedding(weight: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(words, weight, sparse=True) * 2


@pytest.mark.parametrize("factor", [2.0, 2.1])
def test_gradients_with_few_elements_are_compared(factor: float) -> None:
    # Dynamo has inputs in the order in which they are used.
    def program(words: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        found = weight[words]
        return [found * factor - (found * (factor - 2)).detach()]

    encoded = encoded_of(_embedding, torch.rand(10, 4, requires_grad=True), torch.tensor([1, 2, 2]), trains=True)
    if factor == 2.0:
        assert checked(encoded, lambda _: program).compared
        return
    with pytest.raises(VerificationFailed, match="gradient"):
        checked(encoded, lambda _: program)


def _dropping_nothing(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, torch.nn.functional.dropout(weight, training=False)


def test_a_weight_that_is_handed_through_without_gradients_passes() -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, weight.detach()]

    encoded = encoded_of(_dropping_nothing, torch.rand(3), torch.nn.Parameter(torch.rand(3)))
    assert checked(encoded, lambda _: program).compared == 3


def _without_further_gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    doubled = x * 2
    torch.set_grad_enabled(False)
    return doubled, doubled.cos()


def test_a_graph_that_leaves_gradients_switched_off_has_those_from_before() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [*_without_further_gradients(x)]

    captured = capture(_without_further_gradients, torch.rand(3, requires_grad=True))
    # Captured, it was called as well.
    with torch.enable_grad():
        encoded = captured.encode()
    torch.set_grad_enabled(True)
    # Two outputs and a gradient.
    assert checked(encoded, lambda _: program).compared == 3
