"""Canaries of torch_internals/checkpoint_contexts.py."""

from __future__ import annotations

import importlib
import inspect

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from compilefarm.torch_internals.checkpoint_contexts import CACHE_HASH, CONTEXT_FN, are_selective, note_decisions


def test_contexts_say_what_their_policy_decides() -> None:
    contexts = create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_SAVE)
    assert are_selective(contexts)
    assert not are_selective(create_selective_checkpoint_contexts([], allow_cache_entry_mutation=True))
    noted = []
    note_decisions(contexts[0], lambda *told: noted.append(told))
    with contexts[0]:
        torch.ones(2).sin()
    assert ("aten.sin.default", CheckpointPolicy.MUST_SAVE) in noted


def test_the_function_that_makes_contexts_is_where_it_was() -> None:
    for module in ("torch._dynamo.variables.higher_order_ops", "torch._higher_order_ops.wrap"):
        assert f'"{CONTEXT_FN}"' in inspect.getsource(importlib.import_module(module))
    cache = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    assert f'hasattr(context_fn, "{CACHE_HASH}")' in inspect.getsource(cache)
