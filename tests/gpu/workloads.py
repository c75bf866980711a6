"""What the checks on a GPU run: one workload for each kind of graph and of kernel that a farm has to finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.farm import models
from tests.graph import triton_programs

from . import kernels, operators
from .mended import MENDED
from .workload import CALLS_OF_CUDA_GRAPHS, Arguments, Workload, of_calls, of_function, of_model


def _large_llama() -> models.ModelAndInputs:
    return models.llama(hidden_size=1024, intermediate_size=2816, layers=8, heads=16, vocabulary=32000, tokens=128)


def _perceptron() -> models.ModelAndInputs:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 8))
    return model, (torch.randn(32, 64),)


def _rows_with_gaps() -> models.ModelAndInputs:
    """Rows of 1,177 elements begin at multiples of 128 bytes where a backward is given them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 1177), nn.GELU(), nn.LayerNorm(1177), nn.Linear(1177, 8)), (torch.randn(32, 64),)


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


def _steps_of_a_decoder(device: torch.device) -> tuple[nn.Module, Callable[[], Arguments]]:
    decoder = models.DecodingStep(hidden_size=256, layers=4, heads=8, vocabulary=1000, most_tokens=64).to(device)
    with torch.no_grad():
        # The cache takes its memory when it is written first: before, so that it is an input of the graph.
        decoder(torch.zeros(1, 1, dtype=torch.long, device=device), torch.tensor([0], device=device))
    places = iter(range(1, 1 + CALLS_OF_CUDA_GRAPHS))
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


_HEADS = (2, 4, 128, 64)

WORKLOADS: dict[str, Workload] = {
    "mlp": of_model(models.mlp),
    "convolutions": of_model(models.convolutional),
    "convolutions, channels last": of_model(_channels_last),
    "llama": of_model(models.llama),
    "MiniLM, its real weights": of_model(models.minilm),
    "MiniLM, CUDA's best": of_model(models.minilm, mode="max-autotune-no-cudagraphs"),
    "llama, 8 layers, bfloat16": of_model(_large_llama, dtype=torch.bfloat16, mode="max-autotune-no-cudagraphs"),
    "batches that differ": of_function(
        lambda x: torch.relu(x @ x.new_ones(64, 32)).sum(-1), ((5, 64),), ((9, 64),), ((700, 64),), dynamic=True
    ),
    "arguments that begin askew later": _of_alignment(False, True),
    "arguments that begin askew at first": _of_alignment(True, False),
    "training": of_model(_perceptron, training=True),
    "training, rows with gaps": of_model(_rows_with_gaps, training=True),
    "autocast": of_function(_autocast, ((8, 64), (64, 32))),
    "attention": of_function(_attention, (_HEADS, _HEADS, _HEADS)),
    "own kernel": of_function(triton_programs.add, ((3000,), (3000,))),
    "own kernel, sizes that differ": of_function(
        triton_programs.add, ((3000,), (3000,)), ((700,), (700,)), dynamic=True
    ),
    "own kernel, tuned": of_function(triton_programs.tuned, ((3000,),)),
    "own kernel, tuned, sizes that differ": of_function(triton_programs.tuned, ((3000,),), ((500,),), dynamic=True),
    "own kernel, writes twice": of_function(triton_programs.swapped, ((512,), (512,))),
    "own kernel, forward and backward": of_function(triton_programs.tripled, ((3000,),), training=True),
    "own kernel, in place": of_function(kernels.grown, ((3000,),)),
    "own kernel, TMA": of_function(kernels.copied_by_tma, ((64, 64),)),
    "CUDA graphs, decoding": of_calls(_steps_of_a_decoder),
    "CUDA graphs, training": of_calls(_steps_of_training, training=True),
    "CUDA graphs, training without a backward to record": of_calls(_with_an_empty_backward, training=True),
    "CUDA graphs, partitions": of_calls(_with_a_part_on_the_cpu),
    "CUDA graphs, an operator that may not be recorded": of_calls(_with_an_operator_that_may_not_be_recorded),
    "CUDA graphs, a sample": of_calls(_with_a_sample),
    "CUDA graphs, a prompt": of_calls(_steps_with_a_prompt),
    "CUDA graphs, max-autotune": of_calls(_steps_of_training, mode="max-autotune"),
    "CUDA graphs, sizes that differ": of_calls(_of_sizes_that_differ, dynamic=True),
    **MENDED,
}
