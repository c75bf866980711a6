"""Policies of selective activation checkpointing are sent as what they decide."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.graph.testing import CapturedGraph, capture, trace
from compilefarm.torch_internals.checkpoint_contexts import CONTEXT_FN
from compilefarm.v1.graph_pb2 import NamedValue
from compilefarm.v1.job_pb2 import Job

MM = torch.ops.aten.mm.default
X = torch.rand(4, 4, requires_grad=True)


def _products(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).sin() @ x


def _captured(context_fn: Callable[[], Any], *, by: Callable[..., CapturedGraph] = capture) -> CapturedGraph:
    return by(lambda x: checkpoint(_products, x, use_reentrant=False, context_fn=context_fn), X)


def _decode(job: Job) -> DecodedJob:
    return decode_job(job, blobs={}, operators=set(), kernels=())


def _every_second_product() -> Any:
    asked = Counter[bool]()

    def decide(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        asked[context.is_recompute] += operator is MM
        is_kept = operator is MM and asked[context.is_recompute] == 2
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(decide)


def _policies(job: Job) -> NamedValue:
    (found,) = (each for node in job.graph.nodes for each in node.annotations if each.name == "checkpoint_policies")
    return found


def _decided(job: Job) -> dict[str, str]:
    return {entry.name: entry.value.text for entry in _policies(job).value.dictionary.entries}


@pytest.mark.parametrize(
    ("context_fn", "products"),
    [
        (partial(create_selective_checkpoint_contexts, [MM]), "00"),
        (partial(create_selective_checkpoint_contexts, lambda context, operator, *_, **__: operator is MM), "00"),
        (_every_second_product, "30"),
    ],
    ids=["list", "truth", "counting"],
)
def test_what_a_policy_decides_is_sent(context_fn: Callable[[], Any], products: str) -> None:
    assert _decided(_captured(context_fn).encode().job) == {"aten.mm.default": products, "aten.sin.default": "3"}


def test_a_worker_keeps_what_the_policy_keeps() -> None:
    """Each product has two in its gradient, and is computed once, or once more."""
    job = _captured(_every_second_product).encode().job
    decoded = _decode(job)
    again = CapturedGraph(graph_module=decoded.graph_module, example_inputs=decoded.inputs).encode().job
    assert key_of(again) == key_of(job)
    block = decoded.graph_module.get_submodule("subgraph_0")
    with _Counting() as counting:
        checkpoint(block, X, use_reentrant=False, context_fn=block.meta[CONTEXT_FN])[0].sum().backward()
    assert counting.calls[MM] == 2 + 1 + 4


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "digits"),
    [("aten.mm.default", "09"), ("aten.mm.default", ""), ("aten.mm default", "00"), ("", "00")],
)
def test_what_is_no_policy_is_refused(name: str, digits: str) -> None:
    job = _captured(_every_second_product).encode().job
    entry = _policies(job).value.dictionary.entries[0]
    entry.name, entry.value.text = name, digits
    with pytest.raises(InvalidRequest, match="no operator with a decision"):
        _decode(job)


def test_a_policy_of_fewer_calls_is_refused_when_the_graph_is_compiled() -> None:
    job = _captured(_every_second_product).encode().job
    _policies(job).value.dictionary.entries[0].value.text = "3"
    block = _decode(job).graph_module.get_submodule("subgraph_0")
    with pytest.raises(InvalidRequest, match=r"calls aten\.mm\.default more often"):
        checkpoint(block, X, use_reentrant=False, context_fn=block.meta[CONTEXT_FN])


@pytest.mark.parametrize(
    "context_fn",
    [
        lambda: (contextlib.nullcontext(), contextlib.nullcontext()),
        partial(create_selective_checkpoint_contexts, [MM], allow_cache_entry_mutation=True),
    ],
    ids=["others", "changes"],
)
def test_other_contexts_stay_in_the_pod(context_fn: Callable[[], Any]) -> None:
    with pytest.raises(Bypass, match="other contexts than a policy's"):
        _captured(context_fn).encode()


def test_a_policy_that_raises_stays_in_the_pod() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KeyError("no such layer")

    with pytest.raises(Bypass, match=r"ends with an error: .*no such layer"):
        _captured(partial(create_selective_checkpoint_contexts, refuse), by=trace).encode()


def test_a_policy_below_a_mode_of_the_graph_stays_in_the_pod() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: torch.Tensor = checkpoint(_products, x, use_reentrant=False, context_fn=_every_second_product)
            return result

    with pytest.raises(Bypass, match="enters a mode"):
        capture(narrow, X).encode()
