"""Where the settings allow narrow products of float32, a program that has them passes, and a wrong one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from compilefarm.graph.fp32_precision import Product, narrow_precisions
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.narrowing import find_narrowed
from tests.worker.verifying import checked, encoded_of

_MATMULS = {F.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
_CONVOLUTIONS = {F.conv2d, torch.conv2d}


class _Coarse(TorchFunctionMode):  # type: ignore[misc]
    """Rounds what is multiplied to as many bits as float16 and TF32 have, or bfloat16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MATMULS | _CONVOLUTIONS:
            args = tuple(self._rounded(each) for each in args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, operand: Any) -> Any:
        return operand.to(self._dtype).to(operand.dtype) if isinstance(operand, torch.Tensor) else operand


def _with(dtype: torch.dtype) -> Callable[[GraphModule], Callable[..., Any]]:
    def program_of(graph_module: GraphModule) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            with _Coarse(dtype):
                return graph_module(*inputs)

        return run

    return program_of


def _scaled(graph_module: GraphModule) -> Callable[..., Any]:
    return lambda *inputs: [output * 1.02 for output in graph_module(*inputs)]


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


_SETTINGS = (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)


@pytest.fixture
def allowed() -> Iterator[Callable[[str, str], None]]:
    before = [setting.fp32_precision for setting in _SETTINGS]
    precision = torch.get_float32_matmul_precision()

    def allow(product: str, precision: str) -> None:
        getattr(torch.backends.mkldnn, product).fp32_precision = precision

    yield allow
    torch.set_float32_matmul_precision(precision)
    for setting, value in zip(_SETTINGS, before, strict=True):
        setting.fp32_precision = value


def test_a_convolution_in_tf32_is_right_where_it_is_allowed(allowed: Callable[[str, str], None]) -> None:
    model, x = _convolutions().eval(), torch.randn(2, 3, 12, 12)
    with pytest.raises(VerificationFailed, match="reference in high precision"):
        checked(encoded_of(model, x), _with(torch.float16))
    allowed("conv", "tf32")
    encoded = encoded_of(model, x)
    found = checked(encoded, _with(torch.float16))
    assert found.eager_error < 1e-6 < found.error < found.allowed_error
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        checked(encoded, _scaled)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_layer_in_what_the_precision_of_matmuls_allows_is_right(
    precision: str, allowed: Callable[[str, str], None]
) -> None:
    dtype = torch.float16 if precision == "high" else torch.bfloat16
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(8, 64)
    with pytest.raises(VerificationFailed):
        checked(encoded_of(model, x), _with(dtype))
    torch.set_float32_matmul_precision(precision)
    assert checked(encoded_of(model, x), _with(dtype)).referenced == 1


def test_without_products_nothing_is_allowed(allowed: Callable[[str, str], None]) -> None:
    allowed("conv", "tf32")
    with pytest.raises(VerificationFailed):
        checked(encoded_of(lambda x: x.sin(), torch.rand(64)), lambda _: lambda x: [x.half().float().sin()])


def test_gradients_through_narrow_products_are_right_too(allowed: Callable[[str, str], None]) -> None:
    allowed("conv", "tf32")
    model = _convolutions().train()
    assert checked(encoded_of(model, torch.randn(2, 3, 12, 12), trains=True), _with(torch.float16)).referenced > 1


def test_operands_alone_are_rounded_not_what_is_written_to(allowed: Callable[[str, str], None]) -> None:
    allowed("matmul", "bf16")
    bias, x, weight = torch.full((2, 2), 1 + 2**-20), torch.zeros(2, 3), torch.full((3, 2), 1 + 2**-20)

    def run() -> dict[str, torch.Tensor]:
        kept = bias.clone()
        return {"written": kept.addmm_(x, weight), "kept": kept, "product": (x + 1) @ weight}

    narrowed = find_narrowed(run)
    assert narrowed is not None
    assert narrowed.dtype == torch.bfloat16
    assert torch.equal(narrowed.results["written"], bias)
    assert torch.equal(narrowed.results["kept"], bias)
    assert torch.equal(narrowed.results["product"], torch.full((2, 2), 3.0))


def test_each_device_has_settings_of_its_own(allowed: Callable[[str, str], None]) -> None:
    # torch allows TF32 in cuDNN unless it is told otherwise.
    by_default = {Product.CONVOLUTION: torch.float16, Product.RECURRENT: torch.float16}
    assert narrow_precisions(is_cuda=True) == by_default
    assert narrow_precisions(is_cuda=False) == {}
    allowed("conv", "bf16")
    assert narrow_precisions(is_cuda=False) == {Product.CONVOLUTION: torch.bfloat16}
    torch.set_float32_matmul_precision("high")
    assert narrow_precisions(is_cuda=True) == dict.fromkeys(Product, torch.float16)
