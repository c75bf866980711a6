"""Decoders of text, at lengths that differ."""

from __future__ import annotations

from .models import GROUPED, SMALL, TOKENS, text_program

_GPT = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
_EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}

PROGRAMS = (
    text_program("gpt2", "GPT2LMHeadModel", _GPT),
    text_program("gpt_bigcode", "GPTBigCodeForCausalLM", _GPT),
    text_program("gptj", "GPTJForCausalLM", {**_GPT, "rotary_dim": 4}),
    text_program("codegen", "CodeGenForCausalLM", {**_GPT, "rotary_dim": 4}),
    text_program(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": TOKENS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    text_program("gpt_neox", "GPTNeoXForCausalLM", SMALL),
    text_program("opt", "OPTForCausalLM", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    text_program("bloom", "BloomForCausalLM", {"vocab_size": TOKENS, "hidden_size": 32, "n_layer": 1, "n_head": 4}),
    text_program("falcon", "FalconForCausalLM", SMALL),
    text_program("mpt", "MptForCausalLM", {"vocab_size": TOKENS, "d_model": 32, "n_layers": 1, "n_heads": 4}),
    text_program("llama", "LlamaForCausalLM", {**GROUPED, "num_hidden_layers": 2}),
    text_program("llama dynamic", "LlamaForCausalLM", GROUPED, options={"dynamic": True}),
    text_program("llama fullgraph", "LlamaForCausalLM", GROUPED, options={"fullgraph": True}),
    text_program("mistral", "MistralForCausalLM", {**GROUPED, "sliding_window": 8}),
    text_program("qwen2", "Qwen2ForCausalLM", GROUPED),
    text_program("qwen3", "Qwen3ForCausalLM", GROUPED),
    text_program("gemma", "GemmaForCausalLM", GROUPED),
    text_program("gemma2", "Gemma2ForCausalLM", {**GROUPED, "num_hidden_layers": 2, "sliding_window": 8}),
    text_program("gemma3", "Gemma3ForCausalLM", {**GROUPED, "num_hidden_layers": 2, "sliding_window": 8}),
    text_program("phi", "PhiForCausalLM", SMALL),
    text_program("phi3", "Phi3ForCausalLM", {**GROUPED, "eos_token_id": 1}),
    text_program("stablelm", "StableLmForCausalLM", GROUPED),
    text_program("olmo2", "Olmo2ForCausalLM", GROUPED),
    text_program("cohere", "CohereForCausalLM", GROUPED),
    text_program("starcoder2", "Starcoder2ForCausalLM", GROUPED),
    text_program("granite", "GraniteForCausalLM", GROUPED),
    text_program("mixtral", "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    text_program("qwen2_moe", "Qwen2MoeForCausalLM", {**GROUPED, **_EXPERTS}),
    text_program("qwen3_moe", "Qwen3MoeForCausalLM", {**GROUPED, **_EXPERTS}),
    text_program("mamba", "MambaForCausalLM", {**SMALL, "state_size": 8}),
)
