"""Numbers that tensors hold, and integers that are looked for, as requests say them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from compilefarm.graph.looked_up_numbers import with_tensors_looked_up
from tests.corpus.codec import CodecBackend

X = torch.tensor([0, 3, 2, 1])


class Classes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Buffer(torch.tensor(4))

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x, self.number) * 2


# Each is called with X and an integer tensor, whose element decides a size.
FIXED: dict[str, Callable[..., torch.Tensor]] = {
    "classes": lambda x, n: F.one_hot(x, n) * 2,
    "classes by name": lambda x, n: F.one_hot(x, num_classes=n) + n,
    "classes, and what is classified": lambda x, n: F.one_hot(n - 1, n) + x,
    "of a module": Classes(),
    "stride": lambda x, n: F.conv1d(x.float()[None, None], torch.ones(1, 1, 2), stride=(n,)),
    "subscript": lambda x, n: x.repeat(2)[n] * x.repeat(2)[None, n] + x,
    "steps": lambda x, n: torch.linspace(0, 1, n) * x,
}


@pytest.mark.parametrize("name", FIXED)
def test_a_number_that_dynamo_guards_is_sent_as_it_is(name: str) -> None:
    backend = CodecBackend()
    torch.compiler.reset()
    compiled = torch.compile(FIXED[name], backend=backend)
    for number in (4, 5) if name == "classes" else (4,):
        given = torch.tensor(number)
        torch.testing.assert_close(compiled(X, given), FIXED[name](X, given))
    assert [(report.outcome, report.message, report.unfaithful) for report in backend.reports] == [
        ("sent", "", []) for _ in backend.reports
    ]
    assert backend.reports


def test_a_number_that_decides_nothing_is_left_open() -> None:
    def pad(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, n)) + 1

    backend = CodecBackend()
    torch.compiler.reset()
    compiled = torch.compile(pad, backend=backend)
    for number in (4, 5):
        torch.testing.assert_close(compiled(X, torch.tensor(number)), pad(X, torch.tensor(number)))
    assert [(report.message, report.unfaithful) for report in backend.reports] == [("", [])]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", [3, 2**24 + 1, -1])
def test_an_integer_that_is_looked_for_is_no_float(number: int, dynamic: bool) -> None:
    def look_for(given: int, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.isin(given, x), torch.isin(given, x, invert=True), torch.isin(x, given)

    backend = CodecBackend()
    torch.compiler.reset()
    elements = torch.tensor([[3, 2**24], [-1, 7]])
    found = torch.compile(look_for, backend=backend, dynamic=dynamic)(number, elements)
    assert [report.message for report in backend.reports] == [""]
    assert [each.tolist() for each in found] == [each.tolist() for each in look_for(number, elements)]
    captured: list[Any] = []
    torch.compiler.reset()
    torch.compile(look_for, backend=lambda graph, _: captured.append(graph) or graph.forward, dynamic=dynamic)(
        number, elements
    )
    looking = [node for node in with_tensors_looked_up(captured[0]).graph.nodes if node.target is torch.isin]
    assert [type(node.args[0]).__name__ for node in looking] == ["Node", "Node", "Node"]
