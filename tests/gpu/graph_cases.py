"""What is timed under CUDA graphs: steps of inference and of training, as large as models that are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.farm import models

Arguments = tuple[torch.Tensor, ...]
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function that is compiled, and how a call of it goes.

    Attributes:
        function: a model.
        draw: makes the arguments of a call.
        prepare: done before each call, and not timed.
        training: goes backward after each call, and changes the weights.
    """

    function: nn.Module
    draw: Callable[[], Arguments]
    prepare: Callable[[], object] = lambda: None
    training: bool = False

    def call(self, function: Function, arguments: Arguments) -> torch.Tensor:
        """The result of a call; of a step of training, the loss."""
        if not self.training:
            with torch.no_grad():
                result: torch.Tensor = function(*arguments)
            return result
        loss = function(*arguments).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in self.function.parameters():
                if weight.grad is not None:
                    weight.sub_(weight.grad, alpha=1e-3)
                weight.grad = None
        return loss.detach()


class Generation:
    """A decoder whose `generate` compiles each step, by the backend and in the mode that transformers takes.

    Args:
        device: where it computes.
        backend: as in torch.compile.
    """

    prompt_tokens = 32

    def __init__(self, device: torch.device, *, backend: Any) -> None:
        from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM, StaticCache

        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            vocab_size=32000,
            eos_token_id=None,
        )
        with device:
            self._decoder = LlamaForCausalLM(config).eval().to(torch.bfloat16)
            self._cache = StaticCache(config=config, max_cache_len=256)
        self._compile_config = CompileConfig(backend=backend)
        self._prompt = torch.randint(0, config.vocab_size, (1, self.prompt_tokens), device=device)

    def __call__(self, tokens: int) -> list[int]:
        """That many tokens after the prompt, the likeliest one each time."""
        self._cache.reset()
        found = self._decoder.generate(
            self._prompt,
            attention_mask=torch.ones_like(self._prompt),
            past_key_values=self._cache,
            compile_config=self._compile_config,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        chosen: list[int] = found[0, self.prompt_tokens :].tolist()
        return chosen


def _decoder(device: torch.device) -> models.DecodingStep:
    torch.manual_seed(0)
    with device:
        decoder = models.DecodingStep(hidden_size=2048, layers=8, heads=16, vocabulary=32000, most_tokens=1024)
        decoder = decoder.to(torch.bfloat16)
        with torch.no_grad():
            # The cache takes its memory when it is written first: before, so that it is an input of the graph.
            decoder(torch.zeros(1, 1, dtype=torch.long), torch.tensor([0]))
    return decoder


def _decoding(device: torch.device) -> Case:
    decoder = _decoder(device)
    place = torch.tensor([0], device=device)
    return Case(
        function=decoder,
        draw=lambda: (torch.randint(0, 32000, (1, 1), device=device), place),
        prepare=decoder.cache.reset,
    )


def _prefill(device: torch.device) -> Case:
    decoder = _decoder(device)
    places = torch.arange(512, device=device)
    return Case(
        function=decoder,
        draw=lambda: (torch.randint(0, 32000, (1, 512), device=device), places),
        prepare=decoder.cache.reset,
    )


def _minilm(device: torch.device) -> Case:
    model, (tokens,) = models.minilm()
    return Case(function=model.to(device), draw=lambda: (torch.randint_like(tokens, 1000, 20000).to(device),))


class _Pooled(nn.Module):
    def __init__(self) -> None:
        from transformers import ViTConfig, ViTModel

        super().__init__()
        self.encoder = ViTModel(ViTConfig()).eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(images).last_hidden_state
        return hidden


def _vision(device: torch.device) -> Case:
    torch.manual_seed(0)
    with device:
        model = _Pooled().to(torch.bfloat16)
    return Case(function=model, draw=lambda: (torch.randn(8, 3, 224, 224, device=device, dtype=torch.bfloat16),))


class DiffusionBlock(nn.Module):
    """Attention and a perceptron of a diffusion transformer, scaled and shifted by what it is conditioned on."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.projection, self.result = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, later_shift, later_scale, later_gate = self.modulation(condition)[:, None].chunk(6, dim=-1)
        heads = self.projection(self.norms[0](x) * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + gate * self.result(seen.transpose(1, 2).flatten(2))
        return x + later_gate * self.perceptron(self.norms[1](x) * (1 + later_scale) + later_shift)


def _diffusion(device: torch.device) -> Case:
    torch.manual_seed(0)
    with device:
        block = DiffusionBlock(width=1152, heads=16).to(torch.bfloat16)
    return Case(
        function=block,
        draw=lambda: (
            torch.randn(2, 1024, 1152, device=device, dtype=torch.bfloat16),
            torch.randn(2, 1152, device=device, dtype=torch.bfloat16),
        ),
    )


def _training(device: torch.device) -> Case:
    torch.manual_seed(0)
    layers = {"hidden_size": 1024, "intermediate_size": 2816, "layers": 4, "heads": 16}
    with device:
        model, _ = models.llama(vocabulary=32000, tokens=8, **layers)
        model = model.train().to(torch.bfloat16)
    return Case(function=model, draw=lambda: (torch.randint(0, 32000, (4, 128), device=device),), training=True)


CASES: dict[str, Callable[[torch.device], Case]] = {
    "decoding step": _decoding,
    "training step": _training,
    "diffusion transformer block": _diffusion,
    "prefill": _prefill,
    "vision transformer": _vision,
    "MiniLM": _minilm,
}
GENERATE = "generate()"
