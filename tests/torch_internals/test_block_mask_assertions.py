"""Canary of torch_internals/block_mask_assertions.py."""

from __future__ import annotations

import importlib

import pytest

from compilefarm.torch_internals.block_mask_assertions import keeping_block_masks_in_bounds


@pytest.mark.parametrize(("template", "checks"), [("FLEX_ATTENTION_TEMPLATE", 4), ("FLEX_DECODING_TEMPLATE", 6)])
def test_templates_believe_what_block_masks_say(template: str, checks: int) -> None:
    importlib.import_module("torch._inductor.lowering")
    templates = importlib.import_module("torch._inductor.codegen.cpp_flex_attention_template")
    if template == "FLEX_DECODING_TEMPLATE" and not hasattr(templates, template):
        pytest.skip("torch 2.11 has none for decoding")
    believing = getattr(templates, template)
    with keeping_block_masks_in_bounds():
        asserted = getattr(templates, template)
    assert asserted.count("TORCH_CHECK(") - believing.count("TORCH_CHECK(") == checks
    assert getattr(templates, template) == believing
