"""Canaries of torch_internals/dynamo_frames.py, and of dynamo_guards.py where it takes traces apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from compilefarm.torch_internals.dynamo_frames import (
    ADDRESS_OF_WRAPPED,
    NOT_TRACED_FORM,
    Frame,
    Trace,
    Traced,
    backend_of,
    install_global,
    installed_rest,
    intercept_frames,
    replayed,
    rest_of,
    rests_within,
    traced_of,
    unwrapped_program,
    wrapped_program,
)
from compilefarm.torch_internals.dynamo_guards import TracedGuard, TracedGuards, build_guards, guards_of, sizes_of


def _backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
    return graph_module.forward


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _compiled_with(on_frame: Callable[[Frame, Trace], Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    torch.compiler.reset()
    restore = intercept_frames(on_frame)
    try:
        compiled = torch.compile(_doubled, backend=_backend, dynamic=False)
        return [compiled(each) for each in inputs]
    finally:
        restore()
        torch.compiler.reset()


def test_frames_are_intercepted_and_their_traces_seen() -> None:
    seen: list[Any] = []

    def kinds_of(traced: Traced) -> set[str]:
        return {guard.kind for guard, _ in guards_of(traced.output_graph)}

    def on_frame(frame: Frame, trace: Trace) -> Any:
        seen.append((frame.code, backend_of(frame).compiler_fn, frame.is_whole, frame.is_plain, *frame.local_variables))
        return traced_of(trace(), on_guards=lambda *given: seen.append((*given, kinds_of(given[0]))))

    _compiled_with(on_frame, torch.ones(2), torch.ones(2), torch.ones(3))
    assert [each for each in seen if each[0] is _doubled.__code__] == [
        (_doubled.__code__, _backend, False, True, "x")
    ] * 2
    traced, manager, kinds = seen[1]
    assert isinstance(traced, Traced)
    assert {"TENSOR_MATCH", "GLOBAL_STATE", "SHAPE_ENV"} <= kinds
    assert [name for name in traced.installed if name.startswith("__compiled_fn_")]
    assert {*traced.inlined} <= {_doubled.__code__}
    assert manager.guard_manager.check({"x": torch.ones(2)})


def _breaking(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x * factor
        torch._dynamo.graph_break()
        return y + factor

    return breaks


def _breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@pytest.mark.parametrize(("function", "cells"), [(_breaks, ()), (_breaking(2.0), ("factor",))])
def test_rests_of_functions_are_found_and_made_again(
    function: Callable[[torch.Tensor], torch.Tensor], cells: tuple[str, ...]
) -> None:
    seen: list[Any] = []

    def keep(traced: Traced, _: object) -> None:
        found = {name: rest_of(name, globals()[name]) for name in traced.installed}
        seen.extend((name, rest, traced.code) for name, rest in found.items() if rest is not None)

    torch.compiler.reset()
    restore = intercept_frames(lambda _, trace: traced_of(trace(), on_guards=keep))
    try:
        torch.compile(function, backend=_backend)(torch.ones(2))
    finally:
        restore()
    ((name, (code, scope), generated),) = seen
    assert code.co_freevars == cells
    assert scope in (globals(), None)
    again = rest_of(name, installed_rest(name, code, globals()))
    assert again == (code, scope)
    # Either the generated code has the rest, or something among the globals makes it.
    assert [each is code for each in rests_within(generated)] == ([True] if scope is None else [])
    torch.compiler.reset()


def test_a_trace_is_stood_in_for() -> None:
    kept: list[Traced] = []
    sources: list[TracedGuard] = []

    def keep(traced: Traced, _: object) -> None:
        kept.append(traced)
        sources.extend(guard for guard, _ in guards_of(traced.output_graph))

    _compiled_with(lambda _, trace: traced_of(trace(), on_guards=keep), torch.ones(2))
    (name,) = [each for each in kept[0].installed if "compiled" in each]
    calls: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(x)
        return (x * 2,)

    def on_frame(frame: Frame, _: Trace) -> Any:
        wrapped = wrapped_program(program)
        assert unwrapped_program(wrapped) is program
        assert ADDRESS_OF_WRAPPED in vars(wrapped)
        cleanup = install_global(frame.global_variables, f"{name}_again", wrapped)
        traced = TracedGuards(
            guards=[each for each in sources if each.kind == "TENSOR_MATCH"],
            shape_expressions=[],
            sizes=sizes,
            key_order=[],
            aliases=[],
            builtins_name=None,
        )
        manager = build_guards(
            frame.code, traced, local_variables=frame.local_variables, global_variables=frame.global_variables
        )
        assert manager.guard_manager.check(frame.local_variables)
        names = tuple(f"{each}_again" if each == name else each for each in kept[0].code.co_names)
        return replayed(kept[0].code.replace(co_names=names), manager, cleanups=[cleanup])

    sizes = {guard.source: ([2], [1]) for guard in sources if guard.kind == "TENSOR_MATCH"}
    assert sizes_of(kept[0].output_graph).keys() >= sizes.keys()
    first, second = _compiled_with(on_frame, torch.ones(2), torch.ones(2) * 3)
    assert (first.tolist(), second.tolist(), len(calls)) == ([2.0, 2.0], [6.0, 6.0], 2)


def test_functions_of_torch_that_are_not_traced_keep_their_form() -> None:
    function = torch.utils.checkpoint.checkpoint
    function(torch.sin, torch.ones(2), use_reentrant=False)
    assert NOT_TRACED_FORM in vars(inspect.unwrap(function))
