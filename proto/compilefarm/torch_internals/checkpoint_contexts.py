"""What selective activation checkpointing decides of each operator (torch/utils/checkpoint.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, _CachedTorchDispatchMode, _CachingTorchDispatchMode

# Where Dynamo notes context_fn= of torch.utils.checkpoint (torch/_dynamo/variables/higher_order_ops.py).
CONTEXT_FN = "_checkpoint_context_fn"
# What torch takes for the key of its cache in place of such a function, which it cannot look into
# (torch/_functorch/_aot_autograd/autograd_cache.py: _get_context_fn_cache_hash).
CACHE_HASH = "cache_hash"


def are_selective(contexts: object) -> bool:
    """Whether these contexts do what a policy says and nothing else, as create_selective_checkpoint_contexts makes
    them.
    """
    if not isinstance(contexts, tuple | list) or [type(each) for each in contexts] != [
        _CachingTorchDispatchMode,
        _CachedTorchDispatchMode,
    ]:
        return False
    # Then what was saved may be changed before gradients are computed.
    return not contexts[1].allow_cache_entry_mutation


def note_decisions(context: Any, note: Callable[[str, CheckpointPolicy], None]) -> None:
    """Has a context for the forward pass tell what its policy decides: an operator by its name, and the decision."""
    decide = context.policy_fn

    def noting(told: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        decision = decide(told, operator, *args, **kwargs)
        if isinstance(decision, bool):
            decision = CheckpointPolicy.MUST_SAVE if decision else CheckpointPolicy.PREFER_RECOMPUTE
        note(str(operator), decision)
        return decision

    context.policy_fn = noting
