"""Programs of a kind that a farm with GPUs refused once. For each kind the table of tests.wild has the program that was
seen, and this has another one; its own way of being refused is said beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.farm import models
from tests.settings import restoring_torchao_settings

from .workload import Arguments, Workload, of_calls, of_function, of_model

_LENGTHS = (0, 3, 10, 12)


def _experts() -> models.ModelAndInputs:
    """Products of groups of rows were no operator of the farm (Mixtral)."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    torch.manual_seed(0)
    config = OlmoeConfig(
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=256,
        pad_token_id=0,
    )
    return models.Logits(OlmoeForCausalLM(config).eval()), (torch.randint(0, 256, (2, 16)),)


def _regions() -> models.ModelAndInputs:
    """Operators of torchvision were unknown to workers (Faster R-CNN)."""
    from torchvision.ops import roi_pool

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.classes = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 9, 5)

        def forward(self, images: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
            pooled = roi_pool(self.features(images).relu(), regions, output_size=3, spatial_scale=0.5)
            scores: torch.Tensor = self.classes(pooled.flatten(1))
            return scores

    torch.manual_seed(0)
    regions = torch.tensor([[0.0, 1.0, 2.0, 20.0, 28.0], [1.0, 4.0, 4.0, 30.0, 12.0]])
    return Pooled(), (torch.randn(2, 3, 16, 16), regions)


def _quantized() -> models.ModelAndInputs:
    """Weights that torchao quantizes are tensors of classes of its own, which the client did not send."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.LayerNorm(256), nn.Linear(256, 64)).eval()
    with restoring_torchao_settings():
        quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model, (torch.randn(32, 128),)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Rows that differ in length, as a jagged tensor."""
    offsets = torch.tensor(_LENGTHS, device=values.device)
    longest = max(end - begin for begin, end in itertools.pairwise(_LENGTHS))
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=longest)


def _weighted(values: torch.Tensor) -> torch.Tensor:
    """Kernels were tuned on offsets that are all zero, of which an assertion on the GPU made a refusal."""
    rows = _rows(values * 2)
    weighted: torch.Tensor = (rows * rows.softmax(dim=1)).values()
    return weighted


def _padded(values: torch.Tensor) -> torch.Tensor:
    """The same, in the gradient."""
    return torch.nested.to_padded_tensor(_rows(values.sin()), 0.0).cumsum(1)


def _windowed(device: torch.device) -> tuple[Callable[..., Any], Callable[[], Arguments]]:
    """Block masks were filled with numbers of blocks that there are not."""
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 64), 1, 1, 256, 256, device=device.type)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = flex_attention(query, key, value, block_mask=mask)
        return found

    return attend, lambda: tuple(torch.randn(1, 2, 256, 32).to(device) for _ in range(3))


def _scaled_by_its_size(x: torch.Tensor) -> torch.Tensor:
    """Roots of sizes, and tensors of them, could not be sent."""
    return x.softmax(-1) * math.sqrt(x.shape[0]) + torch.tensor(x.shape[0], device=x.device)


def _curvature(x: torch.Tensor) -> torch.Tensor:
    """Switches of saved tensors stood in graphs of derivatives of derivatives."""
    found: torch.Tensor = torch.func.hessian(lambda y: (y.sin() * y.square()).sum())(x)
    return found


def _chosen(x: torch.Tensor) -> torch.Tensor:
    """How many elements a mask leaves is known once it was looked at."""
    left = torch.masked_select(x, x > 0)
    return torch.cat([left.sort().values[-4:], left.new_full((1,), left.shape[0])])


def _framed(x: torch.Tensor) -> torch.Tensor:
    """Windows were made of numbers that could not be sent."""
    return torch.fft.rfft(x * torch.signal.windows.kaiser(x.shape[-1], device=x.device)).abs()


def _cells() -> models.ModelAndInputs:
    """What cells of recurrent networks call on GPUs had no fake form."""

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(16, 32)

        def forward(self, steps: torch.Tensor) -> torch.Tensor:
            hidden = steps.new_zeros(steps.shape[1], 32)
            for step in steps.unbind():
                hidden = self.cell(step, hidden)
            return hidden

    torch.manual_seed(0)
    return Unrolled(), (torch.randn(5, 8, 16),)


def _sampled() -> models.ModelAndInputs:
    """What grid_sample calls on GPUs where corners are aligned had no fake form (kornia)."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # No place falls on the edge of a pixel, where gradients jump.
            self.turn = nn.Parameter(torch.tensor([[0.7754, -0.5961, 0.13], [0.5806, 0.8202, -0.07]]))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            turns = self.turn.expand(images.shape[0], 2, 3)
            grid = nn.functional.affine_grid(turns, list(images.shape), align_corners=True)
            return nn.functional.grid_sample(images.tanh(), grid, align_corners=True).square()

    torch.manual_seed(0)
    return Turned(), (torch.randn(2, 3, 17, 23),)


def _masked() -> models.ModelAndInputs:
    """Kernels were tuned on masks without an element, of which an assertion made a refusal (pytorch-crf)."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            torch._assert_async(mask[:, 0].all(), "the first of each row is masked")
            return torch.where(mask.unsqueeze(-1), self.scores(x), 0.0).logsumexp(1)

    torch.manual_seed(0)
    return Masked(), (torch.randn(4, 64, 16), torch.rand(4, 64).cumsum(1) < 20)


def _steps(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], *, decay: float = 1.0) -> Workload:
    """Steps of an optimizer, which keeps numbers on the CPU beside tensors on the GPU. Rates that differ from call to
    call are floats of the graph.
    """

    def on(device: torch.device) -> tuple[Callable[..., Any], Callable[[], Arguments]]:
        weights = [nn.Parameter(torch.randn(shape).to(device)) for shape in ((64, 32), (32,))]
        optimizer = make(weights)

        def step(*gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= decay
            return tuple(weight.detach() * 1 for weight in weights)

        return step, lambda: tuple(torch.randn(weight.shape).to(device) for weight in weights)

    return of_calls(on, mode=None)


def _steps_of_adapters(
    device: torch.device, *, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, Callable[[], Arguments]]:
    """Small layers that are trained beside quantized ones. CUDA graphs were not recorded of them."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64).requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x).relu() + self.up(self.down(x))
            return result

    model = Adapted().to(device, dtype)
    with restoring_torchao_settings():
        quantize_(model.layer, Int8WeightOnlyConfig())
    return model, lambda: (torch.randn(32, 64).to(device, dtype),)


def _steps_of_narrow_adapters(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    """Rows that the backward pass is given were cut out of wider ones, which it had not been told: an error when it was
    called (torchao).
    """
    return _steps_of_adapters(device, dtype=torch.bfloat16)


MENDED: dict[str, Workload] = {
    "experts": of_model(_experts, dtype=torch.bfloat16),
    "regions of images": of_model(_regions),
    "samples between pixels": of_model(_sampled, training=True),
    "asserted masks": of_model(_masked, training=True),
    "cells of recurrent networks": of_model(_cells, training=True),
    "int8 weights and activations": of_model(_quantized),
    "jagged, weighted": of_function(_weighted, ((12, 16),)),
    "jagged, padded, training": of_function(_padded, ((12, 16),), training=True),
    "flexible attention, a window": of_calls(_windowed, mode=None),
    "roots of sizes": of_function(_scaled_by_its_size, ((5, 64),), ((9, 64),), ((700, 64),), dynamic=True),
    "derivatives of derivatives": of_function(_curvature, ((12,),)),
    "what a mask leaves": of_function(_chosen, ((40, 8),)),
    "windows of signals": of_function(_framed, ((4, 256),)),
    "numbers on the CPU, NAdam": _steps(lambda weights: torch.optim.NAdam(weights, foreach=True)),
    "steps counted on the GPU, Adam": _steps(lambda weights: torch.optim.Adam(weights, capturable=True, foreach=True)),
    "rates that differ, RMSprop": _steps(
        lambda weights: torch.optim.RMSprop(weights, lr=0.05, momentum=0.9, foreach=True), decay=0.5
    ),
    "rows of wider products, training, int8 weights": of_calls(
        _steps_of_narrow_adapters, training=True, mode=None, options={"force_shape_pad": True}
    ),
    "CUDA graphs, training, int8 weights": of_calls(_steps_of_adapters, training=True),
}
