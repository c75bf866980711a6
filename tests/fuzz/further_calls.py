"""Calls that make sense, of operators that PyTorch's samples do not call, or not as they are called here: products with
narrow weights and with groups, bags of embeddings, gradients by name, and what goes by indices and pivots.
"""

from __future__ import annotations

from typing import Any

import torch

from compilefarm.torch_internals.operators import OpOverload

from .hostile_calls import HostileCall

_aten: Any = torch.ops.aten
_NARROW, _HALF = torch.float8_e4m3fn, torch.bfloat16


def further_calls() -> list[HostileCall]:
    """All of them, with the same elements each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [*_products(), *_grouped_products(), *_bags(), *_quantized(), *_by_places(), *_solved(), *_gradients()]


def _call(operator: OpOverload, *args: Any) -> HostileCall:
    return HostileCall(operator=operator, args=args, kwargs={})


def _integers(*size: int) -> torch.Tensor:
    return torch.randint(-100, 100, size, dtype=torch.int8)


def _products() -> list[HostileCall]:
    narrow, weights = torch.randn(16, 32).to(_NARROW), torch.randn(16, 32).to(_NARROW).t()
    one, packed = torch.tensor(1.0), _aten._convert_weight_to_int4pack_for_cpu(torch.ones(32, 64, dtype=torch.int32), 2)
    return [
        _call(_aten._int_mm.default, _integers(18, 16), _integers(24, 16).t()),
        _call(_aten._scaled_mm.default, narrow, weights, one, one, None, None, _HALF, False),
        _call(_aten._weight_int8pack_mm.default, torch.randn(5, 64), _integers(33, 64), torch.randn(33)),
        _call(
            _aten._weight_int4pack_mm_for_cpu.default,
            *(torch.randn(5, 64).to(_HALF), packed, 32, torch.randn(2, 32, 2).to(_HALF)),
        ),
    ]


def _grouped_products() -> list[HostileCall]:
    rows, ends = torch.randn(16, 32).to(_HALF), torch.tensor([4, 8, 12, 16], dtype=torch.int32)
    of_groups, whole = torch.randn(4, 32, 24).to(_HALF), torch.randn(32, 24).to(_HALF)
    return [
        _call(_aten._grouped_mm.default, rows, of_groups, ends),
        _call(_aten._grouped_mm.default, rows, whole, 2 * ends),
        _call(_aten._grouped_mm.default, of_groups[:, :5].mT.mT, whole[:24].t().contiguous(), ends + 8),
    ]


def _bags() -> list[HostileCall]:
    table, rows, begins = torch.randn(10, 4), torch.tensor([1, 2, 3, 4, 9, 0]), torch.tensor([0, 2, 4])
    ends, weights = torch.tensor([0, 2, 4, 6]), torch.randn(6)
    return [
        _call(_aten.embedding_bag.padding_idx, table, rows, begins, False, 0, False, weights, False, None),
        _call(
            _aten.embedding_bag.padding_idx, table.double(), rows.int(), begins.int(), False, 1, False, None, False, 1
        ),
        _call(_aten.embedding_bag.padding_idx, table, rows.int(), ends.int(), False, 2, False, None, True, 1),
    ]


def _quantized() -> list[HostileCall]:
    x, scales, zeros = torch.randn(3, 4, 5), torch.rand(4), torch.zeros(4, dtype=torch.int32)
    return [
        _call(_aten.fake_quantize_per_channel_affine.default, x, scales, zeros, 1, 0, 255),
        _call(_aten.fake_quantize_per_tensor_affine.tensor_qparams, x, scales[:1], zeros[:1], 0, 255),
        _call(_aten._fake_quantize_learnable_per_channel_affine.default, x, scales, zeros.float(), 1, 0, 255, 1.0),
    ]


def _by_places() -> list[HostileCall]:
    places = torch.arange(16).view(1, 1, 4, 4).repeat(2, 3, 1, 1)
    return [
        _call(_aten.max_unpool2d.default, torch.randn(2, 3, 4, 4), places, [8, 8]),
        _call(
            _aten.max_unpool3d.default, torch.randn(2, 3, 1, 4, 4), places.unsqueeze(2), [1, 8, 8], [1, 2, 2], [0] * 3
        ),
    ]


def _solved() -> list[HostileCall]:
    factors, pivots, right = torch.randn(3, 4, 4), torch.arange(1, 5).int().repeat(3, 1), torch.randn(3, 4, 2)
    return [
        _call(_aten.linalg_ldl_solve.default, factors, pivots, right),
        _call(_aten.linalg_lu_solve.default, factors, pivots, right),
        _call(_aten.lu_unpack.default, factors, pivots),
        _call(_aten.ormqr.default, torch.randn(5, 3), torch.randn(3), torch.randn(5, 2)),
        _call(_aten.linalg_householder_product.default, torch.randn(2, 5, 3), torch.randn(2, 3)),
    ]


def _gradients() -> list[HostileCall]:
    return [*_gradients_of_poolings(), *_gradients_of_convolutions(), *_gradients_of_sizes(), *_gradients_of_borders()]


def _gradients_of_poolings() -> list[HostileCall]:
    flat, deep = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 5, 6, 7)
    return [
        _call(
            _aten.avg_pool2d_backward.default, torch.randn(2, 3, 3, 4), flat, [3, 2], [2, 2], [0, 0], *(False, True), 3
        ),
        _call(_aten.avg_pool2d_backward.default, torch.randn(3, 4, 5), flat[0], [2], [], [1], True, False, None),
        _call(
            _aten.avg_pool3d_backward.default, torch.randn(2, 3, 2, 3, 3), deep, [2] * 3, [], [0] * 3, False, True, None
        ),
        _call(_aten._adaptive_avg_pool2d_backward.default, torch.randn(2, 3, 3, 4), flat),
        _call(_aten._adaptive_avg_pool2d_backward.default, torch.randn(3, 9, 2), flat[0]),
        _call(_aten._adaptive_avg_pool3d_backward.default, torch.randn(2, 3, 3, 2, 4), deep),
    ]


def _gradients_of_convolutions() -> list[HostileCall]:
    image, kernel, whole = torch.randn(2, 4, 6, 7), torch.randn(6, 2, 3, 3), [True, True, True]
    row, volume = torch.randn(2, 3, 9), torch.randn(1, 2, 4, 4, 4)
    operator = _aten.convolution_backward.default
    return [
        _call(
            operator, torch.randn(2, 6, 6, 7), image, kernel, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, whole
        ),
        _call(
            operator, torch.randn(2, 4, 13, 15), image, torch.randn(4, 2, 3, 3), None, [2, 2], [0, 0], [1, 1], True,
            [0, 0], 2, [True, True, False],
        ),
        _call(operator, torch.randn(2, 5, 4), row, torch.randn(5, 3, 2), [5], [2], [0], [1], False, [0], 1, whole),
        _call(
            operator, torch.randn(1, 3, 2, 2, 2), volume, torch.randn(3, 2, 2, 2, 2), [3], [1] * 3, [0] * 3, [2] * 3,
            False, [0] * 3, 1, whole,
        ),
    ]  # fmt: skip


def _gradients_of_sizes() -> list[HostileCall]:
    by_dimensions = {
        1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
        2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"),
        3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
    }
    calls = []
    for dimensions, families in by_dimensions.items():
        for name in families:
            before, after = [3, 5, 4][:dimensions], [7, 5, 6][:dimensions]
            further = [] if "nearest" in name else [True]
            gradient, operator = torch.randn(2, 3, *after), getattr(_aten, f"{name}_backward").default
            calls += [
                _call(operator, gradient, after, [2, 3, *before], *further),
                _call(operator, torch.randn(2, 3, *before), before, [2, 3, *after], *further),
            ]
    return calls


def _gradients_of_borders() -> list[HostileCall]:
    x = torch.randn(2, 3, 4, 5)
    return [
        _call(_aten.replication_pad1d_backward.default, torch.randn(3, 4, 8), x[0], [1, 2]),
        _call(_aten.replication_pad2d_backward.default, torch.randn(2, 3, 7, 6), x, [2, -1, 1, 2]),
        _call(_aten.replication_pad3d_backward.default, torch.randn(1, 2, 7, 7, 6), x[None], [1, 0, 2, 1, 3, 1]),
        _call(_aten.hardshrink_backward.default, torch.randn(4, 5), x[0, 0], 0.5),
        _call(_aten.softshrink_backward.default, torch.randn(4, 5), x[0, 0], 0.5),
    ]
