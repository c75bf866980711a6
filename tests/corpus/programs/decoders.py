"""Decoders of text, and what is done with them beside a forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.corpus.program import Case, Program, call, require_module

from .architectures import LENGTH, SMALL, TOKENS, architecture, build_model, tokens

_LLAMA = {**SMALL, "num_key_value_heads": 2}


class _Step(nn.Module):
    """One step of generation: writes keys and values into a cache of fixed size, which is state of the model."""

    def __init__(self, decoder: Any, cache: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.cache = cache

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self.decoder(
            input_ids,
            past_key_values=self.cache,
            cache_position=positions,
            position_ids=positions[None],
            use_cache=True,
        )
        logits: torch.Tensor = output.logits
        return logits


def _generation() -> Case:
    transformers = require_module("transformers")
    decoder = build_model("LlamaForCausalLM", _LLAMA)
    cache = transformers.StaticCache(config=decoder.config, max_cache_len=LENGTH + 4)
    prompt = call(tokens(batch=1), torch.arange(LENGTH))
    steps = [call(tokens(batch=1, length=1), torch.tensor([LENGTH + number])) for number in range(3)]
    return Case(function=_Step(decoder, cache), calls=[prompt, *steps])


def _several_lengths() -> Case:
    model = build_model("Qwen2ForCausalLM", {**_LLAMA, "use_cache": False})
    return Case(function=model, calls=[call(input_ids=tokens(length=length)) for length in (8, 11)])


PROGRAMS = (
    architecture("llama", "LlamaForCausalLM", num_hidden_layers=2, num_key_value_heads=2, use_cache=False),
    architecture(
        "gpt2", "GPT2LMHeadModel", small=False, vocab_size=TOKENS, n_embd=32, n_layer=1, n_head=4, use_cache=False
    ),
    architecture("qwen3", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=8, use_cache=False),
    architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        num_hidden_layers=2,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=8,
        use_cache=False,
    ),
    architecture("phi3", "Phi3ForCausalLM", num_key_value_heads=2, use_cache=False),
    architecture(
        "falcon_alibi",
        "FalconForCausalLM",
        small=False,
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        alibi=True,
        new_decoder_architecture=False,
        use_cache=False,
    ),
    Program(name="llama_generation", build=_generation),
    Program(name="qwen2_several_lengths", build=_several_lengths),
)
