"""Products with 8-bit weights that Inductor puts together are those of linear layers."""

from __future__ import annotations

import pytest

from compilefarm.torch_internals.weight_only_products import require_linear_layers
from tests.forked_pods import ForkedPods

# In a process of its own: the first compile registers the patterns. Nothing is generated or run: after the lowering
# the count says what was taken for a linear layer.
_COUNT = """
import sys, torch
from torch._dynamo.utils import counters
REQUIRE

class Lowered(Exception):
    pass

def stop(*_args, **_kwargs):
    raise Lowered

torch._inductor.graph.GraphLowering.codegen = stop

def product(x, weight, rows, columns):
    return x.reshape(rows, columns) @ weight.to(x.dtype).t()

def linear(x, weight, scales):
    return torch.nn.functional.linear(x, weight.to(x.dtype)) * scales

CASES = {
    "three dimensions": (linear, (2, 5, 64), 48, (48,)),
    "other rows": (lambda x, w, s: product(x, w, 10, 64).reshape(10, 1, 48) * s, (2, 5, 64), 48, (48,)),
    "other columns": (lambda x, w, s: product(x, w, 10, 64).reshape(2, 5, 48) * s, (2, 10, 32), 48, (48,)),
    "one scale": (linear, (2, 5, 64), 48, (1,)),
    "rows by symbols": (lambda x, w, s: (x.flatten(0, 1) @ w.to(x.dtype).t()).reshape(x.shape[1], x.shape[0], 48) * s,
                        (5, 5, 64), 48, (48,)),
}
for name, (compute, sizes, outputs, of_scales) in CASES.items():
    torch._dynamo.reset()
    counters.clear()
    given = torch.zeros(sizes, dtype=torch.bfloat16), torch.zeros(outputs, 64, dtype=torch.int8)
    if "symbols" in name:
        for dimension in (0, 1):
            torch._dynamo.decorators.mark_unbacked(given[0], dimension)
    try:
        torch.compile(compute, fullgraph=True)(*given, torch.zeros(of_scales, dtype=torch.bfloat16))
    except Exception as error:
        assert "Lowered" in repr(error), (name, repr(error))
    print(name, counters["inductor"]["woq_matcher_count"], sep=": ")
from compilefarm.graph.replacements import find_replacement
print("replacement", find_replacement(), sep=": ")
"""


@pytest.fixture(scope="module")
def counts(forks: ForkedPods) -> dict[str, str]:
    required = f"import {require_linear_layers.__module__} as module; module.{require_linear_layers.__name__}()"
    told = forks.execute(_COUNT.replace("REQUIRE", required))
    assert told.returncode == 0, told.stderr
    return dict(line.split(": ") for line in told.stdout.splitlines())


def test_a_linear_layer_with_8_bit_weights_is_one(counts: dict[str, str]) -> None:
    # Fails where torch looks for it otherwise, and the check with it.
    assert counts["three dimensions"] == "1"


@pytest.mark.parametrize("case", ["other rows", "other columns", "one scale", "rows by symbols"])
def test_what_is_none_is_not_taken_for_one(counts: dict[str, str], case: str) -> None:
    assert counts[case] == "0"


def test_a_worker_does_not_take_the_check_for_a_librarys(counts: dict[str, str]) -> None:
    assert counts["replacement"] == "None"
