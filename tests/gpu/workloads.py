"""What the checks on a GPU run: one workload for each kind of graph and of kernel that a farm has to finish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.farm import models
from tests.graph import triton_programs

from . import kernels, operators

Arguments = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A function and the calls of it.

    Attributes:
        make: the function and the arguments of each call, for a device.
        training: goes backward after each call.
        dynamic: as in torch.compile.
        mode: as in torch.compile.
    """

    make: Callable[[torch.device], tuple[Callable[..., Any], list[Arguments]]]
    training: bool = False
    dynamic: bool | None = None
    mode: str | None = None


def _of_model(make: Callable[[], models.ModelAndInputs], *, dtype: torch.dtype | None = None, **how: Any) -> Workload:
    def on(device: torch.device) -> tuple[nn.Module, list[Arguments]]:
        model, inputs = make()
        return model.to(device, dtype), [tuple(tensor.to(device) for tensor in inputs)]

    return Workload(make=on, **how)


def _of_function(function: Callable[..., Any], *shapes: tuple[tuple[int, ...], ...], **how: Any) -> Workload:
    """A function called once with tensors of each list of shapes."""

    def on(device: torch.device) -> tuple[Callable[..., Any], list[Arguments]]:
        torch.manual_seed(0)
        training = how.get("training", False)
        drawn = [tuple(torch.randn(shape) for shape in call) for call in shapes]
        return function, [tuple(tensor.to(device).requires_grad_(training) for tensor in call) for call in drawn]

    return Workload(make=on, **how)


def _large_llama() -> models.ModelAndInputs:
    return models.llama(hidden_size=1024, intermediate_size=2816, layers=8, heads=16, vocabulary=32000, tokens=128)


def _perceptron() -> models.ModelAndInputs:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 8))
    return model, (torch.randn(32, 64),)


def _channels_last() -> models.ModelAndInputs:
    model, (images,) = models.convolutional()
    return model.to(memory_format=torch.channels_last), (images.to(memory_format=torch.channels_last),)


def _autocast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = x @ weight
    # A tensor that the graph makes itself has to be on the pod's GPU, too.
    return y.float().softmax(-1) + torch.arange(weight.shape[1], device=x.device)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(query.half(), key.half(), value.half(), is_causal=True).float()


def _accumulated(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.sin())
    return total.softmax(-1)


def _of_alignment(*askew: bool) -> Workload:
    """A function that writes to an argument, called with tensors that begin where kernels may load several elements at
    once, or one element further.
    """

    def drawn(device: torch.device, *, first: int) -> torch.Tensor:
        storage = torch.randn(64 * 128 + 1).to(device).untyped_storage()
        return torch.empty(0, device=device).set_(storage, first, (64, 128), (128, 1))

    def on(device: torch.device) -> tuple[Callable[..., Any], list[Arguments]]:
        torch.manual_seed(0)
        return _accumulated, [tuple(drawn(device, first=int(each)) for _ in range(2)) for each in askew]

    return Workload(make=on)


def _of_calls(
    make: Callable[[torch.device], tuple[Callable[..., Any], Callable[[], Arguments]]], **how: Any
) -> Workload:
    """A function that is called so often that it is recorded as CUDA graphs, and replayed with other arguments."""

    def on(device: torch.device) -> tuple[Callable[..., Any], list[Arguments]]:
        torch.manual_seed(0)
        function, draw = make(device)
        return function, [draw() for _ in range(_CALLS_OF_CUDA_GRAPHS)]

    return Workload(make=on, **{"mode": "reduce-overhead", **how})


def _steps_of_a_decoder(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    decoder = models.DecodingStep(hidden_size=256, layers=4, heads=8, vocabulary=1000, most_tokens=64).to(device)
    with torch.no_grad():
        # The cache takes its memory when it is written first: before, so that it is an input of the graph.
        decoder(torch.zeros(1, 1, dtype=torch.long, device=device), torch.tensor([0], device=device))
    places = iter(range(1, 1 + _CALLS_OF_CUDA_GRAPHS))
    return decoder, lambda: (torch.randint(0, 1000, (1, 1)).to(device), torch.tensor([next(places)]).to(device))


def _steps_of_training(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    model, (x,) = _perceptron()
    return model.to(device), lambda: (torch.randn_like(x).to(device),)


class _Shifted(nn.Module):
    """The gradient of its weight is what it is given, so that its backward has no kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + self.shift


def _with_an_empty_backward(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    return _Shifted().to(device), lambda: (torch.randn(32, 64).to(device),)


def _with_a_part_on_the_cpu(device: torch.device) -> tuple[Callable[..., Any], Callable[[], Arguments]]:
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * scale.to(x.device).sum()).relu()

    return scaled, lambda: (torch.randn(32, 64).to(device), torch.randn(4))


def _with_an_operator_that_may_not_be_recorded(
    device: torch.device,
) -> tuple[Callable[..., Any], Callable[[], Arguments]]:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * operators.largest(x.sin())).relu() + x

    return scaled, lambda: (torch.randn(32, 64).to(device),)


def _with_a_sample(device: torch.device) -> tuple[Callable[..., Any], Callable[[], Arguments]]:
    def sampled(x: torch.Tensor) -> torch.Tensor:
        # Of one candidate each, so that the number drawn decides nothing. Torch does not record the operator.
        chosen = torch.multinomial((x == x.amax(-1, keepdim=True)).float(), 1)
        return x.gather(-1, chosen) * x.softmax(-1)

    return sampled, lambda: (torch.randn(32, 64).to(device),)


def _steps_with_a_prompt(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    decoder = models.DecodingStep(hidden_size=256, layers=4, heads=8, vocabulary=1000, most_tokens=64).to(device)
    with torch.no_grad():
        decoder(torch.zeros(1, 1, dtype=torch.long, device=device), torch.tensor([0], device=device))
    begins = iter(range(1, 64, 8))
    return decoder, lambda: (
        torch.randint(0, 1000, (1, 8)).to(device),
        torch.arange(8, device=device) + next(begins),
    )


def _of_sizes_that_differ(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    sizes = iter((5, 9, 9, 9))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(device)
    return model, lambda: (torch.randn(next(sizes), 64).to(device),)


# One warms up, one records, and two replay.
_CALLS_OF_CUDA_GRAPHS = 4
_HEADS = (2, 4, 128, 64)

WORKLOADS: dict[str, Workload] = {
    "mlp": _of_model(models.mlp),
    "convolutions": _of_model(models.convolutional),
    "convolutions, channels last": _of_model(_channels_last),
    "llama": _of_model(models.llama),
    "MiniLM, its real weights": _of_model(models.minilm),
    "MiniLM, CUDA's best": _of_model(models.minilm, mode="max-autotune-no-cudagraphs"),
    "llama, 8 layers, bfloat16": _of_model(_large_llama, dtype=torch.bfloat16, mode="max-autotune-no-cudagraphs"),
    "batches that differ": _of_function(
        lambda x: torch.relu(x @ x.new_ones(64, 32)).sum(-1), ((5, 64),), ((9, 64),), ((700, 64),), dynamic=True
    ),
    "arguments that begin askew later": _of_alignment(False, True),
    "arguments that begin askew at first": _of_alignment(True, False),
    "training": _of_model(_perceptron, training=True),
    "autocast": _of_function(_autocast, ((8, 64), (64, 32))),
    "attention": _of_function(_attention, (_HEADS, _HEADS, _HEADS)),
    "own kernel": _of_function(triton_programs.add, ((3000,), (3000,))),
    "own kernel, sizes that differ": _of_function(
        triton_programs.add, ((3000,), (3000,)), ((700,), (700,)), dynamic=True
    ),
    "own kernel, tuned": _of_function(triton_programs.tuned, ((3000,),)),
    "own kernel, tuned, sizes that differ": _of_function(triton_programs.tuned, ((3000,),), ((500,),), dynamic=True),
    "own kernel, writes twice": _of_function(triton_programs.swapped, ((512,), (512,))),
    "own kernel, forward and backward": _of_function(triton_programs.tripled, ((3000,),), training=True),
    "own kernel, in place": _of_function(kernels.grown, ((3000,),)),
    "own kernel, TMA": _of_function(kernels.copied_by_tma, ((64, 64),)),
    "CUDA graphs, decoding": _of_calls(_steps_of_a_decoder),
    "CUDA graphs, training": _of_calls(_steps_of_training, training=True),
    "CUDA graphs, training without a backward to record": _of_calls(_with_an_empty_backward, training=True),
    "CUDA graphs, partitions": _of_calls(_with_a_part_on_the_cpu),
    "CUDA graphs, an operator that may not be recorded": _of_calls(_with_an_operator_that_may_not_be_recorded),
    "CUDA graphs, a sample": _of_calls(_with_a_sample),
    "CUDA graphs, a prompt": _of_calls(_steps_with_a_prompt),
    "CUDA graphs, max-autotune": _of_calls(_steps_of_training, mode="max-autotune"),
    "CUDA graphs, sizes that differ": _of_calls(_of_sizes_that_differ, dynamic=True),
}
