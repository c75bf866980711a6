"""Mixtures of experts, in the precision in which torch 2.11 multiplies groups of matrices."""

from __future__ import annotations

import torch

from tests.corpus.program import Case, Lacking, Program

from .architectures import SMALL, architecture, build_model, text


def _full_precision() -> Case:
    if torch.__version__ < "2.12":
        raise Lacking(f"torch {torch.__version__} compiles groups of matrices in bfloat16 alone")
    configuration = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "use_cache": False}
    return Case(function=build_model("MixtralForCausalLM", configuration), calls=[text()])


PROGRAMS = (
    Program(name="mixtral_full_precision", build=_full_precision),
    architecture(
        "mixtral",
        "MixtralForCausalLM",
        num_key_value_heads=2,
        num_local_experts=4,
        dtype=torch.bfloat16,
        use_cache=False,
    ),
    architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        head_dim=8,
        sliding_window=8,
        dtype=torch.bfloat16,
        use_cache=False,
    ),
    architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        num_key_value_heads=4,
        num_hidden_layers=2,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        dtype=torch.bfloat16,
        use_cache=False,
    ),
)
