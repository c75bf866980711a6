"""Graphs that write to inputs that share memory: what is sent computes what they do, however inputs share it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.graph.decode import decode_job
from compilefarm.graph.plain_graphs import PlainGraph


class Sending:
    """A backend that runs what a farm would decode.

    Attributes:
        roles: those of the graphs that were sent.
        calls: number of calls of these.
    """

    def __init__(self) -> None:
        self.roles: list[str] = []
        self.calls = 0
        self._runtime = TorchRuntime()

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if not self._runtime.needs_plain_graphs(graph_module, inputs):
            self.roles.append("whole")
            return self._decoded(self._runtime.encode(graph_module, inputs, options={}))
        return self._runtime.compile_plain_graphs(graph_module, inputs, options={}, compile_plain=self._plain)

    def _plain(self, plain: PlainGraph) -> Callable[..., Any]:
        self.roles.append(plain.role)
        return self._decoded(self._runtime.encode_plain(plain, options={}))

    def _decoded(self, encoded: Any) -> Callable[..., Any]:
        decoded = decode_job(encoded.job, blobs=encoded.blobs).graph_module

        def run(*inputs: Any) -> Any:
            self.calls += 1
            return decoded(*inputs)

        return run


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _both_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y.sum())
    y.sub_(1)
    return x + y


def _first_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1.5)
    return x.sin() + y


def _read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 + y


def _at(*firsts: int, size: int = 6) -> list[torch.Tensor]:
    """A tensor, and so many of its elements from each of these on."""
    whole = torch.arange(24.0)
    return [whole, *(whole[first : first + size] for first in firsts)]


def _same(function: Callable[..., Any], compiled: Callable[..., Any], *firsts: int, size: int = 6) -> bool:
    """Whether results are those of the function, and the whole tensor holds what it has then."""
    (expected, *given), (found, *others) = _at(*firsts, size=size), _at(*firsts, size=size)
    return torch.equal(function(*given), compiled(*others)) and torch.equal(expected, found)


@pytest.mark.parametrize("firsts", [(0, 4), (2, 2), (0, 12), (13, 8)], ids=str)
def test_programs_are_right_for_all_places_whatever_those_were_of_the_first_call(firsts: tuple[int, int]) -> None:
    sending = Sending()
    compiled = torch.compile(_both_written, backend=sending, dynamic=False)
    assert _same(_both_written, compiled, *firsts)
    assert (sending.roles, sending.calls) == (["inference"], 1)
    for others in ((0, 4), (1, 5), (12, 0), (3, 3), (18, 2), firsts):
        assert _same(_both_written, compiled, *others), others
    # The last one is the first again.
    assert sending.roles == ["inference"]
    assert sending.calls >= 2


def test_a_view_of_another_tensor_is_no_such_place() -> None:
    sending = Sending()
    compiled = torch.compile(_both_written, backend=sending, dynamic=False)
    assert _same(_both_written, compiled, 0, 4)
    found, expected = (torch.arange(48.0) for _ in range(2))
    assert torch.equal(compiled(found[:6], found[4:10]), _both_written(expected[:6], expected[4:10]))
    assert torch.equal(found, expected)


def test_what_is_only_read_is_sent_as_a_whole() -> None:
    sending = Sending()
    assert _same(_read, torch.compile(_read, backend=sending), 0, 4)
    assert sending.roles == ["whole"]


def test_gradients_go_through_what_was_written() -> None:
    def run(function: Callable[..., Any]) -> list[torch.Tensor]:
        leaf = torch.arange(24.0, requires_grad=True)
        whole = leaf * 1.5
        function(whole[:6], whole[4:10]).sin().sum().backward()
        assert leaf.grad is not None
        return [whole.detach(), leaf.grad]

    sending = Sending()
    torch.testing.assert_close(run(torch.compile(_first_written, backend=sending)), run(_first_written))
    assert sending.roles == ["forward", "backward"]


def test_parameters_in_one_memory_are_stepped() -> None:
    """As those of recurrent layers on a GPU, and of sharded models, are."""

    def step(compiling: Callable[..., Any]) -> torch.Tensor:
        whole = torch.linspace(1, 2, 24)
        parameters = [torch.nn.Parameter(part) for part in whole.split(8)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
        stepped = compiling(optimizer.step)
        for _ in range(3):
            stepped()
        return whole

    sending = Sending()
    torch.testing.assert_close(
        step(lambda function: torch.compile(function, backend=sending)), step(lambda given: given)
    )
    assert set(sending.roles) == {"inference"}


@pytest.mark.parametrize("dynamic", [None, True], ids=["sizes that have differed", "sizes that may differ"])
def test_sizes_that_differ_are_fixed_where_inputs_overlap(dynamic: bool | None) -> None:
    sending = Sending()
    compiled = torch.compile(_both_written, backend=sending, dynamic=dynamic)
    for size, first, second in ((6, 0, 4), (8, 0, 4), (8, 1, 6), (10, 2, 3), (6, 0, 4)):
        assert _same(_both_written, compiled, first, second, size=size), (size, first, second)
    assert sending.roles == ["inference"] * 3


def test_windows_apart_have_one_program_for_all_sizes() -> None:
    sending = Sending()
    compiled = torch.compile(_both_written, backend=sending, dynamic=True)
    for size, first, second in ((6, 0, 12), (8, 0, 9), (7, 13, 2)):
        assert _same(_both_written, compiled, first, second, size=size)
    assert (sending.roles, sending.calls) == (["inference"], 3)
    for size, first, second in ((9, 0, 3), (6, 3, 3), (6, 0, 12)):
        assert _same(_both_written, compiled, first, second, size=size)
