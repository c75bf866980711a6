"""Puts a variant that holds in place of a trace."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from compilefarm.core.dynamo_packages import GlobalKind, GlobalRecord, Variant
from compilefarm.reuse.code_objects import code_of, moved, renamed
from compilefarm.reuse.names_in_code import globals_loaded_by
from compilefarm.reuse.refusals import Differs
from compilefarm.reuse.verification import verify_guards, verify_process
from compilefarm.torch_internals.dynamo_frames import (
    Frame,
    install_global,
    installed_rest,
    replayed,
    rests_within,
    wrapped_program,
)
from compilefarm.torch_internals.dynamo_guards import TracedGuards, build_guards, failed_guard, guards_hold

LoadProgram = Callable[[str], Callable[..., Any]]


def install(variant: Variant, frame: Frame, *, load: LoadProgram, generated: set[CodeType]) -> Any:
    """Returns what stands in for a trace of the frame.

    Args:
        variant: what another process found.
        frame: that would be traced.
        load: returns the program of a key; raises Differs if there is none.
        generated: code that stands for the rest of functions; what is made is added.

    Raises:
        Differs: the variant does not hold here.
    """
    code, manager, installed = _prepared(variant, frame, load=load, generated=generated)
    return replayed(code, manager, cleanups=installed.cleanups)


def require_holds(variant: Variant, frame: Frame) -> None:
    """Passes if a variant could stand in for a trace of the frame. Nothing of it stays.

    Raises:
        Differs: the variant does not hold here.
    """
    _, _, installed = _prepared(variant, frame, load=lambda _: _not_loaded, generated=set())
    installed.take_back()


def _not_loaded(*_: Any) -> Any:
    raise AssertionError("a program that was not loaded is called")


def _prepared(
    variant: Variant, frame: Frame, *, load: LoadProgram, generated: set[CodeType]
) -> tuple[CodeType, Any, _Installed]:
    """The code, the guards, and what was put among the globals for them."""
    describer = verify_process(variant, frame)
    names = {each.name: _free_name(each, frame.global_variables) for each in variant.globals}
    # By its file it is found whose globals are those of the rest of a function.
    place = _Place(
        source=variant.code.filename,
        to=frame.code.co_filename,
        by=frame.code.co_firstlineno - variant.code.firstlineno,
    )
    code = place.moved(renamed(code_of(variant.code), names))
    generated.update(rests_within(code))
    _require_same_signature(code, frame.code)
    _require_names(code, {*frame.global_variables, *frame.builtins, *names.values()})
    values = {each.name: _value_of(each, frame, generated, place) for each in variant.globals if not _is_program(each)}
    scope = {**frame.global_variables, **{names[name]: value for name, value in values.items()}}
    traced = verify_guards(variant, frame, names=names, scope=scope, describer=describer)
    installed = _Installed(frame.global_variables)
    try:
        for each in variant.globals:
            if each.kind is GlobalKind.MODULE:
                # As Dynamo does: other code may come to need it, and nobody takes it away.
                frame.global_variables.setdefault(each.name, values[each.name])
            elif not _is_program(each):
                installed.put(names[each.name], values[each.name])
        manager = _checked_guards(dataclasses.replace(traced, builtins_name=_builtins_name(variant, names)), frame)
        for each in filter(_is_program, variant.globals):
            installed.put(names[each.name], wrapped_program(load(each.program)))
    except BaseException:
        installed.take_back()
        raise
    return code, manager, installed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where code of another process lies in this one (code_objects.py: moved)."""

    source: str
    to: str
    by: int

    def moved(self, code: CodeType) -> CodeType:
        """Returns code that says it is of that place."""
        return moved(code, source=self.source, to=self.to, by=self.by)


class _Installed:
    """Names that were put among the globals of a function."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self._scope = scope
        self.cleanups: list[Callable[[], None]] = []

    def put(self, name: str, value: Any) -> None:
        """Puts a name there, which is free."""
        self.cleanups.append(install_global(self._scope, name, value))

    def take_back(self) -> None:
        """Removes the names."""
        for cleanup in reversed(self.cleanups):
            cleanup()


def _checked_guards(traced: TracedGuards, frame: Frame) -> Any:
    variables = {"local_variables": frame.local_variables, "global_variables": frame.global_variables}
    manager = build_guards(frame.code, traced, **variables)
    if not guards_hold(manager, frame.local_variables):
        raise Differs(f"a guard does not hold: {failed_guard(manager, frame.local_variables)[:200]}")
    return manager


def _is_program(record: GlobalRecord) -> bool:
    return record.kind is GlobalKind.PROGRAM


def _builtins_name(variant: Variant, names: Mapping[str, str]) -> str | None:
    return next((names[each.name] for each in variant.globals if each.kind is GlobalKind.BUILTINS), None)


def _free_name(record: GlobalRecord, scope: Mapping[str, Any]) -> str:
    if record.kind is GlobalKind.MODULE:
        return record.name
    # Never as it was there: a later trace of this process may make the same name, and takes it for its own.
    return next(name for number in itertools.count(1) if (name := f"{record.name}_again{number}") not in scope)


def _value_of(record: GlobalRecord, frame: Frame, generated: set[CodeType], place: _Place) -> Any:
    if record.kind is GlobalKind.BUILTINS:
        return frame.builtins
    if record.kind is GlobalKind.MODULE:
        return _module_of(record, frame.global_variables)
    assert record.code is not None
    code = place.moved(code_of(record.code))
    generated.add(code)
    return installed_rest(record.name, code, frame.global_variables)


def _module_of(record: GlobalRecord, scope: Mapping[str, Any]) -> Any:
    module = sys.modules.get(record.module)
    if module is None or scope.get(record.name, module) is not module:
        raise Differs(f"the module {record.module} is not imported")
    return module


def _require_same_signature(generated: CodeType, code: CodeType) -> None:
    # What _compile asserts of generated code (torch/_dynamo/convert_frame.py).
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    if (generated.co_varnames[:count], generated.co_freevars, generated.co_cellvars) != (
        code.co_varnames[:count],
        code.co_freevars,
        code.co_cellvars,
    ):
        raise Differs("the generated code is of another function")


def _require_names(generated: CodeType, known: set[str]) -> None:
    if missing := sorted(globals_loaded_by(generated) - known):
        raise Differs(f"the generated code names {missing[0]}, which is not there")
