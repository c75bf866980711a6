"""A variant that cannot be used, whatever is wrong with it, costs a trace and nothing else."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from compilefarm.core.dynamo_packages import AliasRecord, Field, SourceRecord, Variant
from tests.reuse.processes import pod

X = torch.linspace(-1.0, 1.0, 6)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _contexts() -> object:
    return create_selective_checkpoint_contexts([torch.ops.aten.sin.default])


def _computed_again(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(torch.sin, x, use_reentrant=False, context_fn=_contexts)
    return result


def _with_source(field: str, value: object) -> Callable[[Variant], Variant]:
    def change(variant: Variant) -> Variant:
        sources = [
            each._replace(
                fields=tuple(own._replace(value=value) if own.name == field else own for own in each.fields)  # type: ignore[arg-type]
            )
            for each in variant.sources
        ]
        return dataclasses.replace(variant, sources=tuple(sources))

    return change


def _with_condition(text: str) -> Callable[[Variant], Variant]:
    return lambda variant: dataclasses.replace(variant, shape_expressions=(text,))


def _with_relation_of_no_tensors(variant: Variant) -> Variant:
    place = len(variant.sources)
    path = SourceRecord(kind="GlobalSource", fields=(Field(name="global_name", value="Path"),))
    relation = AliasRecord(kind="StorageOverlap", first=(place,), second=())
    return dataclasses.replace(variant, sources=(*variant.sources, path), aliases=(relation,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with_source("local_name", "x'] or print('"), "is no name"),
        (_with_source("local_name", "y"), "is not there"),
        (_with_condition("print('code')"), "is not understood"),
        (_with_condition("L['x'].size("), "cannot be read"),
        # Python's parser says that memory has run out, and goes on for minutes with the powers.
        (_with_condition("-" * 100_000 + "1"), "cannot be read"),
        (_with_condition("L['x'].size()[0] < 9**9**9"), "without an end"),
        (_with_condition("((L['x'].size()[0]**64)**64)**64 > 1"), "without an end"),
        (
            lambda each: dataclasses.replace(
                each, code=dataclasses.replace(each.code, varnames=("y", *each.code.varnames[1:]))
            ),
            "another function",
        ),
        (lambda each: dataclasses.replace(each, sizes=()), "a defect"),
        (_with_relation_of_no_tensors, "a defect"),
        (lambda each: dataclasses.replace(each, globals=()), "is not there"),
    ],
)
def test_a_changed_variant_is_not_installed(change: Callable[[Variant], Variant], reason: str, tmp_path: Path) -> None:
    _publish(tmp_path)
    for file in tmp_path.glob("*.variant"):
        file.write_bytes(pickle.dumps(change(pickle.loads(file.read_bytes()))))
    assert reason in _traced(tmp_path)


def test_without_its_program_a_frame_is_traced(tmp_path: Path) -> None:
    _publish(tmp_path)
    assert _traced_or_reused(tmp_path) == []
    for file in tmp_path.glob("*.graph"):
        file.unlink()
    assert "no program" in _traced(tmp_path)


def test_nothing_is_published_of_a_policy_that_is_not_traced(tmp_path: Path) -> None:
    torch.compiler.reset()
    with pod(tmp_path) as own:
        torch.compile(_computed_again, backend=own.backend)(X)
    ((_, reason),) = own.unpublished
    assert "the policy of a checkpoint" in reason


def _publish(folder: Path) -> None:
    torch.compiler.reset()
    with pod(folder) as own:
        torch.compile(_doubled, backend=own.backend, dynamic=False)(X)
    assert own.unpublished == []


def _traced(folder: Path) -> str:
    (reason,) = _traced_or_reused(folder)
    return reason


def _traced_or_reused(folder: Path) -> list[str]:
    torch.compiler.reset()
    with pod(folder, publishes=False) as own:
        found = torch.compile(_doubled, backend=own.backend, dynamic=False)(X)
    assert torch.equal(found, _doubled(X))
    return own.traced
