"""Two pods have one library of operators in two states."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator

import pytest
import torch

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.operators import describable, describe_operators
from tests.forked_pods import ForkedPods

from .libraries import OPERATORS, write_library


@pytest.fixture(scope="module")
def pods(forks: ForkedPods, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What three pods say of the operators. The first two have equal libraries, in two places."""
    states = [
        (str(write_library(tmp_path_factory.mktemp("library"), factor=factor)), str(factor))
        for factor in (2.0, 2.0, 3.0)
    ]
    arguments = itertools.chain.from_iterable(states)
    done = forks.run("tests.wrong_hits.describing", *arguments, environment=os.environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "unchanged"])
def test_an_operator_that_does_something_else(pods: list[dict[str, str]], name: str) -> None:
    one, same, other = pods
    assert one[name] == same[name] != other[name]


def test_an_operator_beside_it(pods: list[dict[str, str]]) -> None:
    assert len({pod["unchanged"] for pod in pods}) == 1


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("wrong_hits_unknown", "FRAGMENT")
    yield made
    made._destroy()


def test_an_operator_that_no_file_defines(library: torch.library.Library) -> None:
    namespace: dict[str, object] = {"torch": torch}
    exec(  # as a line that is typed
        'torch.library.define("wrong_hits_unknown::typed", "(Tensor x) -> Tensor")\n'
        'torch.library.impl("wrong_hits_unknown::typed", "CompositeImplicitAutograd")(lambda x: x * 2)\n',
        namespace,
    )
    with pytest.raises(Bypass, match="Python code that was not found"):
        describe_operators(["wrong_hits_unknown::typed"])
    assert not describable(["wrong_hits_unknown::typed"])


def test_a_function_that_no_file_defines() -> None:
    namespace: dict[str, object] = {"torch": torch, "__name__": "__main__"}
    exec(
        "def doubled(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
        'torch.library.custom_op("wrong_hits_typed::doubled", doubled, mutates_args=())\n',
        namespace,
    )
    with pytest.raises(Bypass, match="was not read from a file"):
        describe_operators(["wrong_hits_typed::doubled"])
