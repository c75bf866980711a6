"""Canaries of torch_internals/dynamo_guards.py; test_dynamo_frames.py builds guards with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import LocalSource, UnspecializedNNModuleSource
from torch._guards import DuplicateInputs, StorageOverlap
from torch.overrides import TorchFunctionMode

from compilefarm.torch_internals.dynamo_guards import (
    TracedGuard,
    TracedGuards,
    aliases_of,
    build_guards,
    dispatch_keys,
    failed_guard,
    global_state,
    guards_hold,
    guards_of,
    is_copy_on_write,
    notes_of,
    range_of_iterator,
    sizes_of,
    tuple_iterator_length,
)

X, Y = LocalSource("x", is_input=True), LocalSource("y", is_input=True)


class _Graph:
    """What is read of an OutputGraph."""

    def __init__(self, *aliases: object) -> None:
        self.aotautograd_guards = aliases
        self.guards: list[object] = []
        self.input_source_to_sizes_strides = {X: {"size": (2, 3), "stride": (3, 1)}}


def test_relations_between_inputs_are_taken_apart() -> None:
    graph = _Graph(DuplicateInputs(X, Y), StorageOverlap([X], [Y]))
    assert aliases_of(graph) == [("DuplicateInputs", [X], [Y]), ("StorageOverlap", [X], [Y])]
    with pytest.raises(ValueError, match="not known"):
        aliases_of(_Graph(object()))


def test_sizes_are_told() -> None:
    assert sizes_of(_Graph()) == {X: ([2, 3], [3, 1])}
    assert guards_of(_Graph()) == []


def test_conditions_on_sizes_and_relations_are_checked() -> None:
    traced = TracedGuards(
        guards=[TracedGuard(kind="TENSOR_MATCH", source=each, arguments={}) for each in (X, Y)]
        + [TracedGuard(kind="SHAPE_ENV", source=_shape_source(), arguments={})],
        shape_expressions=["L['x'].size()[0] == L['y'].size()[0]"],
        sizes={each: ([None], [1]) for each in (X, Y)},
        key_order=[],
        aliases=[],
        builtins_name=None,
    )
    frame = {"x": torch.ones(2), "y": torch.ones(2)}
    code = (lambda x, y: x + y).__code__
    manager = build_guards(code, traced, local_variables=frame, global_variables={})
    same = torch.ones(3)
    assert guards_hold(manager, frame)
    assert guards_hold(manager, {"x": torch.ones(3), "y": torch.ones(3)})
    assert not guards_hold(manager, {"x": torch.ones(2), "y": torch.ones(3)})
    assert not guards_hold(manager, {"x": same, "y": same})
    assert "expected" in failed_guard(manager, {"x": torch.ones(2, 2), "y": same})


class _Counted(TorchFunctionMode):  # type: ignore[misc]
    """Counts functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_a_guard_that_raises_leaves_torch_functions_as_they_were() -> None:
    traced = TracedGuards(
        guards=[],
        shape_expressions=[],
        sizes={},
        key_order=[],
        aliases=[("StorageOverlap", [X], [])],
        builtins_name=None,
    )
    frame = {"x": 5}
    manager = build_guards((lambda x: x).__code__, traced, local_variables=frame, global_variables={})
    with pytest.raises(RuntimeError):
        guards_hold(manager, frame)
    with _Counted() as counted:
        torch.ones(2).sin()
    assert counted.calls


def test_facts_of_tensors() -> None:
    tensor = torch.ones(2)
    assert dispatch_keys(tensor) != dispatch_keys(torch.ones(2, device="meta"))
    assert not is_copy_on_write(tensor)
    assert is_copy_on_write(torch._lazy_clone(tensor))


def test_notes_on_tensors_are_told() -> None:
    tensor = torch.ones(2)
    assert notes_of(tensor, X) == {}
    torch._dynamo.mark_dynamic(tensor, 0, min=2, max=8)
    assert len(notes_of(tensor, X)) >= 2
    hash(tuple(notes_of(tensor, X).values()))
    marked = torch.ones(2)
    torch._dynamo.mark_static_address(marked, guard=False)
    # As Dynamo marks parameters and what modules hold.
    of_module = UnspecializedNNModuleSource(LocalSource("model"))
    assert notes_of(marked, X) == notes_of(nn.Parameter(tensor), X) == notes_of(torch.ones(2), of_module)
    torch._dynamo.mark_static_address(marked, guard=True)
    assert notes_of(marked, X) != notes_of(torch.ones(2), of_module)
    assert notes_of(nn.Buffer(tensor), X) == {"_is_buffer": True, "persistent": True}


def test_iterators_are_measured() -> None:
    assert tuple_iterator_length(iter((1, 2, 3))) == 3
    assert range_of_iterator(iter(range(2, 9, 3))) == (2, 11, 3)


def test_state_is_compared_with_the_present() -> None:
    state = global_state()
    assert state.check()
    with torch.no_grad():
        assert not state.check()


def _shape_source() -> object:
    from torch._dynamo.source import ShapeEnvSource

    return ShapeEnvSource()
