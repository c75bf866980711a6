"""State space models, and other decoders that carry a state along."""

from __future__ import annotations

import torch

from tests.corpus.program import Call, call

from .architectures import TOKENS, architecture, tokens


def _without_mask() -> Call:
    return call(input_ids=tokens(length=4))


PROGRAMS = (
    architecture(
        "mamba",
        "MambaForCausalLM",
        inputs=_without_mask,
        small=False,
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=1,
        state_size=8,
        use_cache=False,
    ),
    architecture(
        "mamba2",
        "Mamba2ForCausalLM",
        inputs=_without_mask,
        small=False,
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=1,
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
        use_cache=False,
    ),
    architecture(
        "jamba",
        "JambaForCausalLM",
        inputs=_without_mask,
        num_hidden_layers=2,
        num_key_value_heads=2,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        dtype=torch.bfloat16,
        use_mamba_kernels=False,
        mamba_d_state=8,
        use_cache=False,
    ),
    architecture(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        inputs=_without_mask,
        num_hidden_layers=2,
        lru_width=32,
        attention_window_size=8,
        block_types=["recurrent", "attention"],
        use_cache=False,
    ),
    architecture(
        "rwkv",
        "RwkvForCausalLM",
        inputs=_without_mask,
        small=False,
        vocab_size=TOKENS,
        hidden_size=32,
        num_hidden_layers=2,
        use_cache=False,
    ),
)
