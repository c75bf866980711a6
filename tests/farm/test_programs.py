"""What Dynamo makes of more than straight inference, through the real farm, beside the same uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats
from tests.ends import at_later_ones, at_the_oldest

from .serving import ServedFarm

pytestmark = pytest.mark.compiles


def outcomes(farm: ServedFarm, work: Callable[[Any], Any]) -> tuple[Any, list[str | None]]:
    """What `work` gives when it is handed the farm's backend, and what became of its graphs."""
    torch.compiler.reset()
    before = len(stats())
    result = work(Farm(farm.address).backend)
    return result, [record.outcome for record in stats()[before:]]


def uncompiled(work: Callable[[Any], Any]) -> Any:
    """What `work` gives when torch.compile does nothing."""
    with torch.compiler.set_stance("force_eager"):
        return work("eager")


def test_a_training_step_has_the_gradients_of_a_local_compile(farm: ServedFarm) -> None:
    def step(backend: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(12, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.25)
        )
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        x = torch.rand(8, 12)
        torch.manual_seed(7)
        loss = compiled(x).square().sum()
        loss.backward()
        running = [buffer.clone() for buffer in model.buffers()]
        return [loss.detach(), *(parameter.grad for parameter in model.parameters()), *running]  # type: ignore[list-item]

    torch.compiler.reset()
    # Which elements a dropout takes, Inductor decides in its own way.
    theirs = step("inductor")
    for expected in ("compiled", "hit"):
        ours, became = outcomes(farm, step)
        assert became == [expected]
        torch.testing.assert_close(ours, theirs)


def test_an_optimizer_changes_the_parameters_that_its_graph_holds(farm: ServedFarm) -> None:
    def steps(backend: Any) -> list[torch.Tensor]:
        weights = [torch.nn.Parameter(torch.full((5,), value)) for value in (1.0, 2.0)]
        optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
        compiled = torch.compile(optimizer.step, backend=backend, fullgraph=False)
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.detach() * 0.1
            compiled()
        return [weight.detach() for weight in weights]

    ours, became = outcomes(farm, steps)
    assert became
    assert set(became) <= {"compiled", "hit"}
    torch.testing.assert_close(ours, uncompiled(steps))


@at_later_ones
def test_compiled_autograd_has_the_gradients_of_eager_whatever_the_size(farm: ServedFarm) -> None:
    def steps(backend: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 6, dtype=torch.float64)
        # Compiled autograd has hooks in its graphs, which those of forward and backward could not.
        layer.weight.register_hook(lambda gradient: gradient * 3)

        def step(x: torch.Tensor) -> None:
            # The derivative of a selection begins with zeros of the size of all.
            parts = layer(x).unflatten(-1, (3, 2)).movedim(1, 0).contiguous()
            (parts[0] * parts[1].sin() + parts[2].cos()).sum().backward()

        with torch._dynamo.config.patch(compiled_autograd=backend is not None):
            compiled = step if backend is None else torch.compile(step, backend=backend, dynamic=True)
            # The second adds to the gradients of the first.
            for rows in (5, 7):
                compiled(torch.linspace(-1, 1, rows * 4, dtype=torch.float64).view(rows, 4))
        return [parameter.grad for parameter in layer.parameters()]  # type: ignore[misc]

    ours, became = outcomes(farm, steps)
    assert set(became) <= {"compiled", "hit"}
    torch.testing.assert_close(ours, steps(None))


@at_the_oldest
def test_a_graph_that_is_kept_goes_backward_again(farm: ServedFarm) -> None:
    def steps(backend: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
        compiled = model if backend is None else torch.compile(model, backend=backend)
        x, found = torch.randn(4, 8, requires_grad=True), []
        # Once and no more in between: what is written to then may not be what was copied before.
        for repeats in (2, 0, 1):
            result = compiled(x)
            for _ in range(repeats):
                found += torch.autograd.grad(result[:, 0].sum(), x, retain_graph=True)
            found += torch.autograd.grad(result[:, 1].square().sum(), x)
        return found

    ours, became = outcomes(farm, steps)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, steps(None))


@at_later_ones
def test_a_region_that_is_compiled_once_has_gradients(farm: ServedFarm) -> None:
    @torch.compiler.nested_compile_region
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight)

    def step(backend: Any) -> list[torch.Tensor]:
        x, weight = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_(), torch.eye(4) / 2
        result = torch.compile(lambda x: layer(layer(x, weight), weight), backend=backend)(x)
        result.sum().backward()
        assert x.grad is not None
        return [result.detach(), x.grad]

    ours, became = outcomes(farm, step)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, uncompiled(step))


@at_the_oldest
def test_branches_loops_and_autocast(farm: ServedFarm) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ x).float()
        y = torch.cond(y.sum() > 0, lambda z: z.sin() + 1, lambda z: z.cos(), (y,))
        return torch.vmap(lambda row: row * row.sum())(y)

    x = torch.rand(6, 6)

    def work(backend: Any) -> list[torch.Tensor]:
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        with torch.no_grad():
            return [compiled(x), compiled(-x @ x)]

    ours, became = outcomes(farm, work)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, uncompiled(work))


def test_operators_of_a_library(farm: ServedFarm, library_farm: ServedFarm, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.rand(6)

    def program(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.operators_for_the_farm.scaled(x.sin(), 3.0)
        return result + 1

    def work(backend: Any) -> torch.Tensor:
        result: torch.Tensor = torch.compile(program, backend=backend, fullgraph=True)(x)
        return result

    # Without it on its workers, a farm says what it lacks, and the pod helps itself.
    result, became = outcomes(farm, work)
    assert became == ["fallback"]
    assert "operators_for_the_farm::scaled is wanted (serve --import the module that registers it)" in caplog.text
    torch.testing.assert_close(result, program(x))
    result, became = outcomes(library_farm, work)
    assert became == ["compiled"]
    torch.testing.assert_close(result, program(x))


@at_later_ones
def test_floats_of_a_dynamic_model(farm: ServedFarm) -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.ReLU()).eval()

    def work(backend: Any) -> list[torch.Tensor]:
        compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
        with torch.no_grad():
            return [compiled(torch.ones(2, 3, length)) for length in (8, 21)]

    ours, became = outcomes(farm, work)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, uncompiled(work))


@at_the_oldest
def test_a_view_by_sizes_that_are_written_in_a_model_whose_sizes_are_not(farm: ServedFarm) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).as_strided((4, 4), (8, 1)) * 2

    torch.compiler.reset()
    before = len(stats())
    compiled = torch.compile(model, backend=Farm(farm.address, on_failure="error").backend, dynamic=True)
    for size in (6, 9):
        x = torch.arange(float(size * size)).reshape(size, size)
        torch.testing.assert_close(compiled(x), model(x))
    assert [record.outcome for record in stats()[before:]] == ["compiled"]
    # That program is not for sizes of which the view does not fit into the memory. No program is.
    with pytest.raises(Exception, match="it reaches to element 27 of a memory of"):
        compiled(torch.zeros(5, 5))


def test_a_dynamic_model_is_compiled_here_once_where_no_farm_answers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).eval()
    x = torch.rand(3, 8)
    before = len(stats())
    with torch.no_grad():
        # Nobody listens on port 1.
        result = torch.compile(model, backend=Farm("127.0.0.1:1").backend, dynamic=True)(x)
        torch.testing.assert_close(result, model(x))
    assert [record.outcome for record in stats()[before:]] == ["fallback"]


@at_the_oldest
def test_a_graph_that_indexes_by_the_calls_that_it_counted(farm: ServedFarm) -> None:
    """As a decoder with a cache of fixed size does. The farm calls it more often than the cache has room for."""

    def write(x: torch.Tensor, cache: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, count + torch.arange(4), x)
        count.add_(4)
        return cache.sin()

    def fill(function: Callable[..., Any]) -> list[torch.Tensor]:
        cache, count = torch.zeros(8, 32), torch.tensor(0)
        return [function(torch.full((4, 32), value), cache, count).clone() for value in (1.0, 2.0)] + [cache, count]

    ours, became = outcomes(farm, lambda backend: fill(torch.compile(write, backend=backend)))
    assert became == ["compiled"]
    torch.testing.assert_close(ours, fill(write))


@at_later_ones
def test_indices_that_synthetic_inputs_do_not_have(farm: ServedFarm) -> None:
    def last_of_each(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # A mask of nothing but ones points behind the end.
        return x[torch.arange(len(x)), mask.sum(1)]

    mask = torch.arange(4).expand(3, 4) < torch.tensor([[1], [2], [3]])
    x = torch.rand(3, 4)

    def work(backend: Any) -> torch.Tensor:
        result: torch.Tensor = torch.compile(last_of_each, backend=backend, fullgraph=True)(x, mask)
        return result

    ours, became = outcomes(farm, work)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, last_of_each(x, mask))


@at_the_oldest
def test_an_assertion_says_what_it_says_in_the_model(farm: ServedFarm) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), 'what is "below" zero\nhas no root; {nothing} of this is code')
        return x.sqrt()

    def use(backend: Any) -> torch.Tensor:
        compiled = torch.compile(positive, backend=backend, fullgraph=True)
        with pytest.raises(RuntimeError) as caught:
            compiled(-torch.ones(5))
        assert 'what is "below" zero\nhas no root; {nothing} of this is code' in str(caught.value)
        result: torch.Tensor = compiled(torch.ones(5))
        return result

    ours, became = outcomes(farm, use)
    assert became == ["compiled"]
    torch.testing.assert_close(ours, torch.ones(5))


@at_later_ones
def test_frozen_models_share_a_program_and_are_each_what_they_are_uncompiled(farm: ServedFarm) -> None:
    def inference(backend: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        results, x = [], torch.rand(2, 3, 8, 8)
        for seed in (1, 2):
            torch.manual_seed(seed)
            layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
            model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(576, 5)).eval()
            layers[1].running_var.uniform_(0.5, 2.0)
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            results.append(compiled(x))
            layers[0].weight.mul_(1.5)
            results.append(compiled(x))
        return results

    with torch.no_grad():
        expected = uncompiled(inference)
        with torch._inductor.config.patch(freezing=True):
            ours, became = outcomes(farm, inference)
    assert became == ["compiled", "hit"]
    torch.testing.assert_close(ours, expected)
