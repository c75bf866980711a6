"""Weights are packed for oneDNN of layers whose biases have no gaps."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from compilefarm.torch_internals.packed_layers import add_check, require_dense_operands
from tests.forked_pods import ForkedPods

# In a process of its own: the first compile registers the patterns. Nothing is generated or run: what is to be lowered
# says what was packed.
_PACKED = """
import torch
import compilefarm.torch_internals.packed_layers as module
module.REQUIRE()

class Frozen(Exception):
    pass

def stop(graph, *_args, **_kwargs):
    raise Frozen(sorted(str(node.target) for node in graph.graph.nodes if "pointwise" in str(node.target)))

def with_bias(layer, bias):
    layer.bias = torch.nn.Parameter(bias)
    return layer.eval()

IMAGE = torch.ones(2, 4, 6, 6)
CASES = {
    "convolution": (torch.nn.Conv2d(4, 64, 3), torch.rand(64), IMAGE),
    "one bias": (torch.nn.Conv2d(4, 64, 3), torch.rand(1).expand(64), IMAGE),
    "gaps": (torch.nn.Conv2d(4, 64, 3), torch.rand(64, 2)[:, 0], IMAGE),
    "one bias, transposed": (torch.nn.ConvTranspose2d(4, 64, 3), torch.rand(1).expand(64), IMAGE),
}
torch._inductor.compile_fx.fx_codegen_and_compile = stop
for name, (layer, bias, x) in CASES.items():
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        try:
            torch.compile(with_bias(layer, bias), fullgraph=True)(x)
        except Exception as error:
            assert "Frozen" in repr(error), (name, repr(error))
            print(name, "_convolution_pointwise" in str(error), sep=": ")
from compilefarm.graph.replacements import find_replacement
print("replacement", find_replacement(), sep=": ")
"""


@pytest.fixture(scope="module")
def packed(forks: ForkedPods) -> dict[str, str]:
    told = forks.execute(_PACKED.replace("REQUIRE", require_dense_operands.__name__))
    assert told.returncode == 0, told.stderr
    return dict(line.split(": ") for line in told.stdout.splitlines())


def test_a_convolution_is_packed(packed: dict[str, str]) -> None:
    # Fails where torch packs it otherwise, and the check with it.
    assert packed["convolution"] == "True"


@pytest.mark.parametrize("case", ["one bias", "gaps", "one bias, transposed"])
def test_one_with_elements_that_are_the_same_memory_is_not(packed: dict[str, str], case: str) -> None:
    assert packed[case] == "False"


def test_a_worker_does_not_take_the_check_for_a_librarys(packed: dict[str, str]) -> None:
    assert packed["replacement"] == "None"


def test_a_check_comes_to_those_that_patterns_have() -> None:
    checks = dict[str, Callable[[int], bool]]()

    def register(pattern: str, extra_check: Callable[[int], bool] = lambda _: True) -> None:
        checks[pattern] = extra_check

    module = SimpleNamespace(register_freezing_graph_pattern=register)
    add_check(module, lambda match: match > 3)
    add_check(module, lambda match: match > 5)
    module.register_freezing_graph_pattern("all")
    module.register_freezing_graph_pattern("even", extra_check=lambda match: match % 2 == 0)
    assert {name: list(filter(check, range(8))) for name, check in checks.items()} == {
        "all": [4, 5, 6, 7],
        "even": [4, 6],
    }
