"""`generate()` with a cache of fixed size, which compiles each step itself, and pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.wild.program import Compiler, Program, require_module

from .audio import WHISPER
from .models import GROUPED, build_model, tokens

_NEW_TOKENS = 6
_EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_SLIDING = {**GROUPED, "num_hidden_layers": 2, "sliding_window": 8}


def _how(compiler: Compiler) -> Mapping[str, Any]:
    """What generate() takes to compile its steps, or not to."""
    if compiler.backend is None:
        return {"disable_compile": True}
    config = require_module("transformers").CompileConfig(backend=compiler.backend)
    # Elsewhere than on a GPU transformers compiles when it is told to.
    config._compile_all_devices = True
    return {"compile_config": config}


def _prompts() -> list[Mapping[str, torch.Tensor]]:
    prompts = [tokens(batch=1, length=length) for length in (5, 8)]
    return [{"input_ids": prompt, "attention_mask": torch.ones_like(prompt)} for prompt in prompts]


def _sounds() -> list[Mapping[str, torch.Tensor]]:
    return [{"input_features": torch.randn(1, 16, 40)}]


def _generates(
    architecture: str,
    configuration: Mapping[str, Any],
    *,
    inputs: Callable[[], list[Mapping[str, torch.Tensor]]] = _prompts,
    **options: Any,
) -> Program:
    def run(compiler: Compiler) -> Any:
        with compiler.device:
            model = build_model(architecture, {**configuration, "eos_token_id": None})
            calls = inputs()
        options_of_all = {
            "cache_implementation": "static",
            "do_sample": False,
            "min_new_tokens": _NEW_TOKENS,
            "max_new_tokens": _NEW_TOKENS,
            "pad_token_id": 0,
        }
        return [model.generate(**given, **options_of_all, **options, **_how(compiler)) for given in calls]

    return Program(name=f"generate {architecture}", run=run)


PROGRAMS = (
    _generates("LlamaForCausalLM", GROUPED),
    _generates("Qwen2ForCausalLM", GROUPED),
    _generates("Qwen3ForCausalLM", GROUPED),
    _generates("Gemma2ForCausalLM", _SLIDING),
    _generates("Gemma3ForCausalLM", _SLIDING),
    _generates("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    _generates("Qwen2MoeForCausalLM", {**GROUPED, **_EXPERTS}),
    _generates("Qwen3MoeForCausalLM", {**GROUPED, **_EXPERTS}),
    _generates("WhisperForConditionalGeneration", WHISPER, inputs=_sounds),
)
