"""Canaries of torch_internals/aot_autograd.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from compilefarm.torch_internals.aot_autograd import compile_parts
from compilefarm.torch_internals.fake_tensors import FakeTensor
from compilefarm.torch_internals.settings import FUNCTORCH
from tests.lean import LEAN

# What torch imports to trace, and no more: a pod has no use for the rest.
IMPORTS = """
import sys
sys.path[:0] = {path!r}
from tests.torch_internals.test_aot_autograd import Parts, doubled, two
import torch
weight = two(3, 4, requires_grad=True)
torch.compile(doubled, backend=Parts().backend)(weight).sum().backward()
print([name for name in ("compile_fx", "ir", "lowering", "scheduler") if f"torch._inductor.{{name}}" in sys.modules])
"""


def two(*shape: int, requires_grad: bool = False) -> TwoTensor:
    first, second = (torch.randn(shape, requires_grad=requires_grad) for _ in range(2))
    return TwoTensor(first, second)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.relu() * 2


class Parts:
    """A backend that runs all parts as they are.

    Attributes:
        seen: of each part, its role, its inputs, those that stay in place, and the setting of functorch for lowering.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, Sequence[Any], Sequence[int]]] = []

    def backend(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        def compiler(role: str) -> Callable[..., Any]:
            def compile_part(traced: Any, inputs: Sequence[Any], static_inputs: Sequence[int]) -> Any:
                self.seen.append((role, inputs, static_inputs))
                assert type(torch.ones(1)) is torch.Tensor, "what is compiled is not traced"
                return traced.forward

            return compile_part

        return compile_parts(
            graph_module,
            inputs,
            inference=compiler("inference"),
            forward=compiler("forward"),
            backward=compiler("backward"),
            decompositions={},
            **given,
        )


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def test_a_subclass_becomes_its_plain_tensors() -> None:
    parts, x = Parts(), two(3, 4)
    result = torch.compile(doubled, backend=parts.backend)(x)
    ((role, inputs, _),) = parts.seen
    assert role == "inference"
    assert [(type(each), each.shape) for each in inputs] == [(FakeTensor, (3, 4))] * 2
    assert type(result) is TwoTensor
    torch.testing.assert_close((result.a, result.b), (doubled(x.a), doubled(x.b)))


def test_both_passes_are_compiled_before_the_first_call() -> None:
    seen: list[str] = []
    parts = Parts()

    def backend(graph_module: Any, inputs: Any) -> Any:
        program = parts.backend(graph_module, inputs)
        seen.extend(role for role, *_ in parts.seen)
        return program

    weight = two(3, 4, requires_grad=True)
    torch.compile(doubled, backend=backend)(weight).sum().backward()
    assert seen == ["forward", "backward"]


def test_the_graph_of_both_passes_can_be_changed() -> None:
    parts, seen = Parts(), []

    def backend(graph_module: Any, inputs: Any) -> Any:
        return parts.backend(graph_module, inputs, prepare=lambda both: seen.append([*both.graph.nodes]))

    torch.compile(doubled, backend=backend)(two(2, 2, requires_grad=True)).sum().backward()
    ((*_, output),) = seen
    # Results of the forward pass, and gradients.
    assert len(output.args[0]) == 4
    assert all("val" in node.meta for node in output.all_input_nodes)


def test_parameters_stay_where_they_are() -> None:
    model, parts = torch.nn.Linear(4, 4), Parts()
    model.weight = torch.nn.Parameter(two(4, 4), requires_grad=False)
    with torch.no_grad():
        torch.compile(model, backend=parts.backend)(torch.ones(2, 4))
    ((_, inputs, static_inputs),) = parts.seen
    # Both halves of the weight, and the bias; not what the model is called with.
    moving = [each.shape for number, each in enumerate(inputs) if number not in static_inputs]
    assert moving == [(2, 4)]
    assert len(inputs) == 4


def test_a_list_of_tensors_becomes_its_tensors() -> None:
    parts, x, seen = Parts(), torch.randn(3, requires_grad=True), []

    def backend(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if not isinstance(inputs[0], list):
            return graph_module.forward
        # The call empties the list.
        seen.append(len(inputs[0]))
        return parts.backend(graph_module, inputs)

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: x.sin().sum().backward(), backend=backend)(x)
    ((role, inputs, _),) = parts.seen
    assert role == "inference"
    assert seen == [len(inputs)]
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_settings_are_as_they_were_afterwards() -> None:
    before = FUNCTORCH.cse, FUNCTORCH.force_non_lazy_backward_lowering
    torch.compile(doubled, backend=Parts().backend)(two(2, requires_grad=True))
    assert (FUNCTORCH.cse, FUNCTORCH.force_non_lazy_backward_lowering) == before


def test_tracing_imports_nothing_of_the_compiler() -> None:
    ran = subprocess.run(
        [sys.executable, LEAN, "-c", IMPORTS.format(path=sys.path)], capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines()[-1:] == ["[]"], ran.stderr
