"""Policies of selective activation checkpointing, as data.

A policy is a function of the user's own that says of each operator of a checkpointed graph whether its results are kept
for the gradients or computed again. The pod asks it, on tensors without elements, and sends what it has said: for each
operator, one decision after the other. The worker compiles with these. They decide nothing of what a program computes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.interruptions import raise_interruption
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.targets import find_mode_entered
from compilefarm.torch_internals.checkpoint_contexts import CACHE_HASH, CONTEXT_FN, are_selective, note_decisions
from compilefarm.torch_internals.fake_tensors import FakeTensor
from compilefarm.torch_internals.operator_calls import dispatching_in_python
from compilefarm.v1.graph_pb2 import NamedValue, Value

# The annotation of a node that gives a checkpointed graph.
POLICIES = "checkpoint_policies"
# By their digits on the wire. Others, which move results to the CPU, are for GPUs and of new releases alone.
_DECISIONS = (
    CheckpointPolicy.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.MUST_RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE,
)
_OPERATOR = re.compile(r"[A-Za-z0-9_.]{1,200}")
_DIGITS = re.compile(r"[0-3]{1,100000}")


def encode_policies(checkpointed: GraphModule, *, owner: GraphModule) -> list[NamedValue]:
    """The annotation that says what a policy decides of a graph; none where there is no policy.

    Args:
        checkpointed: the graph within a graph.
        owner: the graph that it is in.

    Raises:
        Bypass: it cannot be said.
    """
    context_fn = checkpointed.meta.get(CONTEXT_FN)
    if context_fn is None:
        return []
    decided = context_fn.decided if isinstance(context_fn, _Contexts) else _ask(context_fn, checkpointed, owner=owner)
    value = Value()
    value.dictionary.SetInParent()
    for name, digits in sorted(decided.items()):
        value.dictionary.entries.add(name=name).value.text = digits
    return [NamedValue(name=POLICIES, value=value)]


def decode_policies(annotations: Iterable[NamedValue]) -> dict[str, object]:
    """What to put into the meta of a graph within a graph, by the annotations of the node that gives it.

    Raises:
        InvalidRequest: they are no policies.
    """
    for annotation in annotations:
        if annotation.name == POLICIES:
            return {CONTEXT_FN: _Contexts(dict(map(_read, annotation.value.dictionary.entries)))}
    return {}


def _read(entry: NamedValue) -> tuple[str, str]:
    if not _OPERATOR.fullmatch(entry.name) or not _DIGITS.fullmatch(entry.value.text):
        raise InvalidRequest(f"{entry.name[:80]!r} is no operator with a decision for each of its calls")
    return entry.name, entry.value.text


def _ask(context_fn: Any, checkpointed: GraphModule, *, owner: GraphModule) -> Mapping[str, str]:
    """Digits of what a policy decides, by the names of operators."""
    # What runs under a mode that the graph itself enters calls other operators than it does here.
    if any(find_mode_entered(node) is not None for node in owner.graph.nodes):
        raise Bypass("annotation", "the graph enters a mode and has a policy for a checkpoint (context_fn)")
    decided: defaultdict[str, list[str]] = defaultdict(list)

    def note(operator: str, decision: CheckpointPolicy) -> None:
        if decision not in _DECISIONS or not _OPERATOR.fullmatch(operator):
            raise Bypass("annotation", f"the policy of a checkpoint decides {decision} of {operator}")
        decided[operator].append(str(_DECISIONS.index(decision)))

    given = [node.meta.get("example_value") for node in checkpointed.graph.find_nodes(op="placeholder")]
    modes = {value.fake_mode for value in given if isinstance(value, FakeTensor)}
    if len(modes) != 1:
        raise Bypass("annotation", "nothing is known of what is given to a checkpoint with a policy (context_fn)")
    try:
        # Python's dispatcher takes some operators apart otherwise, as it does where graphs are compiled.
        with modes.pop(), dispatching_in_python(), torch.enable_grad():
            inputs = [_copied(value) for value in given]
            contexts = _contexts_of(context_fn)
            note_decisions(contexts[0], note)
            with contexts[0]:
                _WithoutElements(checkpointed).run(*inputs)
    except Bypass:
        raise
    except Exception as error:
        raise_interruption(error)
        # Whatever the user's function raises; torch adds what was run, line by line.
        told = str(error).partition("\n")[0]
        raise Bypass("annotation", f"the policy of a checkpoint (context_fn) ends with an error: {told}") from error
    return {operator: "".join(digits) for operator, digits in decided.items()}


def _contexts_of(context_fn: Any) -> Any:
    contexts = context_fn()
    if not are_selective(contexts):
        raise Bypass("annotation", "context_fn of a checkpoint gives other contexts than a policy's")
    return contexts


class _WithoutElements(Interpreter):  # type: ignore[misc]  # torch has no types there
    """Runs a graph that may hold tensors as if these had no elements."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor):
            raise Bypass("graph_state", f"a subgraph holds the tensor {target}")
        return found


def _copied(value: Any) -> Any:
    """The same, which may be written to: only what is no leaf of autograd may."""
    return value.detach().requires_grad_(value.requires_grad).clone() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, eq=False)
class _Contexts:
    """What makes the contexts of a checkpoint, of decisions that were made elsewhere.

    Attributes:
        decided: a digit for each call, by the names of operators.
    """

    decided: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, CACHE_HASH, repr(sorted(self.decided.items())))

    def __call__(self) -> Any:
        return create_selective_checkpoint_contexts(_Policy(self.decided))


class _Policy:
    """A policy that says what is written down, one after the other."""

    def __init__(self, decided: Mapping[str, str]) -> None:
        self._decided = decided
        self._asked: Counter[tuple[str, bool]] = Counter()

    def __call__(self, context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name, again = str(operator), bool(context.is_recompute)
        digits, asked = self._decided.get(name, ""), self._asked[name, again]
        if asked >= len(digits):
            raise InvalidRequest(f"a checkpoint calls {name[:80]} more often than its policy decides")
        self._asked[name, again] += 1
        return _DECISIONS[int(digits[asked])]
