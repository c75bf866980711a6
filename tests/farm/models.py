"""Small models with random weights, one for each kind of graph that the farm has to serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ModelAndInputs = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp(width: int = 32) -> ModelAndInputs:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 4))
    return model.eval(), (torch.randn(8, 16),)


def convolutional() -> ModelAndInputs:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=4),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model.eval(), (torch.randn(2, 3, 16, 16),)


def llama() -> ModelAndInputs:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    return _Logits(LlamaForCausalLM(config).eval()), (torch.randint(0, 256, (1, 16)),)


class _Logits(nn.Module):
    """The decoder without its cache of keys and values, which is no tensor."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(tokens, use_cache=False).logits
        return logits


MODELS: dict[str, Callable[[], ModelAndInputs]] = {"mlp": mlp, "convolutional": convolutional, "llama": llama}
