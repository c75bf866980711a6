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


# The same of layers of models that PT2E has quantized, whose weights are frozen: torch 2.11 packs them for oneDNN.
_COUNT_FROZEN = """
import sys, torch
from torch._dynamo.utils import counters
from torch.nn.functional import conv2d, conv_transpose2d, linear
import torch.ao.quantization.fx._decomposed
REQUIRE

class Frozen(Exception):
    pass

def stop(*_args, **_kwargs):
    raise Frozen

class Layer(torch.nn.Module):
    def __init__(self, compute, weight, scales, bias, axis, zeros):
        super().__init__()
        self.compute, self.axis = compute, axis
        for name, given in dict(weight=weight, scales=scales, zeros=zeros, bias=bias).items():
            self.register_buffer(name, given)

    def forward(self, x):
        quantized = torch.ops.quantized_decomposed
        given = quantized.dequantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8)
        weight = quantized.dequantize_per_channel(
            self.weight, self.scales, self.zeros, self.axis, -128, 127, torch.int8
        )
        return self.compute(given, weight, self.bias)

class Product(torch.nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.register_buffer("weight", torch.zeros(16, 64, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(scales))

    def forward(self, x):
        return torch._int_mm(x, self.weight).float() * x.float().amax(1, True) * self.scales

def layer(compute=linear, size=(64, 4), scales=None, bias=None, axis=0, lie=lambda weight: weight):
    weight = lie(torch.zeros(size, dtype=torch.int8))
    scales = torch.ones(weight.shape[axis]) if scales is None else scales
    return Layer(compute, weight, scales, bias, axis, torch.zeros(len(scales), dtype=torch.int64))

def regrouped(x, weight, bias):
    return (x.reshape(16, 2) @ weight.t()).reshape(4, 4, -1)

KERNELS, BYTES = (64, 4, 1, 1), torch.zeros(18, 16, dtype=torch.int8)
ROWS, IMAGE = torch.zeros(8, 4, dtype=torch.uint8), torch.zeros(2, 4, 6, 6, dtype=torch.uint8)
CASES = {
    "linear": (layer(bias=torch.ones(64)), ROWS),
    "convolution": (layer(conv2d, KERNELS), IMAGE),
    "product": (Product((64,)), BYTES),
    "scales of inputs": (layer(axis=1), ROWS),
    "scales of channels": (layer(conv2d, KERNELS, axis=1), IMAGE),
    "one scale": (layer(scales=torch.ones(1).expand(64)), ROWS),
    "one row": (layer(lie=lambda weight: weight[:1].expand(64, 4)), ROWS),
    "one bias": (layer(bias=torch.ones(1)), ROWS),
    "transposed": (layer(conv_transpose2d, (4, 4, 1, 1)), IMAGE),
    "other columns": (layer(regrouped, (64, 2)), ROWS),
    "scales of rows": (Product((18, 1)), BYTES),
}
torch._inductor.compile_fx.fx_codegen_and_compile = stop
for name, (module, x) in CASES.items():
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        try:
            torch.compile(module.eval(), fullgraph=True)(x)
        except Exception as error:
            assert "Frozen" in repr(error), (name, repr(error))
    found = [counters["inductor"][f"{kind}_weight_prepack_matcher_count"] for kind in ("qlinear", "qconv")]
    print(name, sum(found), sep=": ")
has_patterns = hasattr(torch._inductor.fx_passes.quantization, "_register_qlinear_weight_prepack")
print("patterns", int(has_patterns), sep=": ")
from compilefarm.graph.replacements import find_replacement
print("replacement", find_replacement(), sep=": ")
"""


@pytest.fixture(scope="module")
def frozen_counts(forks: ForkedPods) -> dict[str, str]:
    return _told(_COUNT_FROZEN, forks)


@pytest.fixture(scope="module")
def counts(forks: ForkedPods) -> dict[str, str]:
    return _told(_COUNT, forks)


def _told(program: str, forks: ForkedPods) -> dict[str, str]:
    required = f"import {require_linear_layers.__module__} as module; module.{require_linear_layers.__name__}()"
    told = forks.execute(program.replace("REQUIRE", required))
    assert told.returncode == 0, told.stderr
    return dict(line.split(": ") for line in told.stdout.splitlines())


def test_a_linear_layer_with_8_bit_weights_is_one(counts: dict[str, str]) -> None:
    # Fails where torch looks for it otherwise, and the check with it.
    assert counts["three dimensions"] == "1"


@pytest.mark.parametrize("case", ["other rows", "other columns", "one scale", "rows by symbols"])
def test_what_is_none_is_not_taken_for_one(counts: dict[str, str], case: str) -> None:
    assert counts[case] == "0"


def test_a_worker_does_not_take_the_checks_for_a_librarys(
    counts: dict[str, str], frozen_counts: dict[str, str]
) -> None:
    assert {counts["replacement"], frozen_counts["replacement"]} == {"None"}


@pytest.mark.parametrize("case", ["linear", "convolution", "product"])
def test_weights_of_quantized_layers_are_packed_where_torch_does_it(frozen_counts: dict[str, str], case: str) -> None:
    assert frozen_counts[case] == frozen_counts["patterns"]


@pytest.mark.parametrize(
    "case",
    [
        *("scales of inputs", "scales of channels", "one scale", "one row", "one bias", "transposed"),
        *("other columns", "scales of rows"),
    ],
)
def test_weights_of_what_is_no_such_layer_are_not(frozen_counts: dict[str, str], case: str) -> None:
    # oneDNN would read beyond scales, biases or weights.
    assert frozen_counts[case] == "0"
