"""`generate()` of transformers with a static cache, which compiles each step in the mode for CUDA graphs.

Without a GPU the steps are not recorded, as with Inductor; `python -m tests.gpu.graphs` has the same loop on one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.client import backend, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles

_PROMPT = torch.tensor([[5, 17, 3, 42]])


def _decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def _generated(decoder: Any, **how: Any) -> list[int]:
    found = decoder.generate(
        _PROMPT,
        attention_mask=torch.ones_like(_PROMPT),
        cache_implementation="static",
        do_sample=False,
        min_new_tokens=8,
        max_new_tokens=8,
        pad_token_id=0,
        **how,
    )
    tokens: list[int] = found[0].tolist()
    return tokens


def test_tokens_of_a_static_cache(farm: ServedFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import CompileConfig

    monkeypatch.setenv("COMPILEFARM_ADDRESS", farm.address)
    monkeypatch.setattr(backend, "_farm", None)
    config = CompileConfig(backend="compilefarm")
    assert config.mode == "reduce-overhead"
    # Elsewhere than on a GPU transformers compiles when it is told to.
    config._compile_all_devices = True
    expected = _generated(_decoder(), disable_compile=True)
    before = len(stats())
    decoder = _decoder()
    assert _generated(decoder, compile_config=config) == expected
    assert [record.outcome for record in stats()[before:]] == ["compiled"]
    # The cache is another; the graph is the same.
    assert _generated(decoder, compile_config=config) == expected
    assert [record.outcome for record in stats()[before:]] == ["compiled"]
