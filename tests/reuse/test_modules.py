"""Which module code is of, and what is found in modules and classes without running code."""

from __future__ import annotations

import abc
import dis
import enum
import heapq
import importlib.util
import inspect
import sys
import types

import pytest
import torch

from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.names_in_code import Modules, globals_loaded_by, static_attribute

FILE = "/nowhere/layers.py"


def test_code_is_of_the_module_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("layers", monkeypatch)
    assert Modules().name_of(module.double.__code__) == "layers"
    assert Modules().has_own_globals(module.double.__code__, vars(module))
    assert not Modules().has_own_globals(module.double.__code__, {**vars(module)})


def test_code_of_a_file_that_two_modules_are_of_is_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("layers", monkeypatch)
    other = types.ModuleType("other")
    monkeypatch.setitem(sys.modules, "other", other)
    before = Modules().name_of(module.double.__code__)
    # As many modules as before.
    _module("other", monkeypatch)
    assert (before, Modules().name_of(module.double.__code__)) == ("layers", "")


@pytest.mark.parametrize("by_file", [False, True])
def test_globals_are_of_the_module_that_they_are_in(by_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("layers", monkeypatch)
    code = module.double.__code__
    modules = Modules(by_file=by_file)
    assert modules.owner_of_globals(code, vars(module)) == "layers"
    assert modules.owner_of_globals(code, {**vars(module)}) == ""
    assert modules.owner_of_globals(_named_only.__code__, vars(module)) == ""
    assert modules.owner_of_globals(inspect.getmro.__code__, vars(inspect)) == "inspect"
    monkeypatch.setattr(module, "__name__", "inspect")
    assert Modules(by_file=by_file).owner_of_globals(code, vars(module)) == ""


def test_who_records_finds_that_several_modules_are_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    module, other = _module("layers", monkeypatch), _module("other", monkeypatch)
    recorded, compared = Modules(), Modules(by_file=False)
    assert recorded.owner_of_globals(_named_only.__code__, globals())
    assert not recorded.found_shared
    assert recorded.owner_of_globals(module.double.__code__, vars(module)) == ""
    assert recorded.found_shared
    assert compared.owner_of_globals(module.double.__code__, vars(module)) == "layers"
    assert compared.owner_of_globals(other.double.__code__, vars(other)) == "other"


def test_functions_of_two_modules_of_one_file_are_told_apart_by_whose_globals_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Both say that they are of another module, as functools.wraps has it.
    modules = [_module(name, monkeypatch) for name in ("layers", "other")]
    for each in modules:
        each.double.__module__ = __name__
    texts = [Describer(modules=Modules(by_file=False)).identity(each.double) for each in modules]
    assert texts[0] != texts[1]


def test_code_of_a_module_that_was_replaced_is_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    module, modules = _module("layers", monkeypatch), Modules()
    monkeypatch.setitem(sys.modules, "layers", types.ModuleType("layers"))
    assert modules.name_of(module.double.__code__) == ""
    assert Modules().name_of(module.double.__code__) == ""


def test_evaluated_code_is_of_no_module() -> None:
    scope = {"__name__": __name__}
    exec(compile("def double(x): return 2 * x", "<string>", "exec"), scope)
    double = scope["double"]
    assert isinstance(double, types.FunctionType)
    assert Modules().name_of(double.__code__) == ""


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = FILE
    exec(compile("def double(x): return 2 * x", FILE, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


class _Base:
    kept = 1

    @property
    def computed(self) -> int:
        return 2


class _Meta(type):
    of_metaclass = 3


class _Derived(_Base, metaclass=_Meta):
    @classmethod
    def made(cls) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    "owner", [_Base, _Derived, _Base(), sys, torch._utils, torch.nn.functional, torch.nn.Linear, enum.Enum, abc.ABC]
)
def test_attributes_are_found_as_python_finds_them_without_running_code(owner: object) -> None:
    names = {*dir(owner), *dir(type(owner)), "of_metaclass", "mro", "__dict__", "__name__", "__class__", "missing"}
    missing = object()
    for name in names:
        assert static_attribute(owner, name, missing) is inspect.getattr_static(owner, name, missing), name


@pytest.mark.parametrize("number", [0, 127, 128, 40_000])
def test_globals_that_code_loads_are_found(number: int) -> None:
    # An argument has one byte, of which one bit says whether the global is called; more bytes stand before.
    argument = number << 1
    before = [(dis.EXTENDED_ARG, argument >> shift & 0xFF) for shift in (16, 8) if argument >> shift]
    load = dis.opmap["LOAD_GLOBAL"]
    first, _, rest = _named_only.__code__.co_code.partition(bytes([load, 0]))
    code = _named_only.__code__.replace(
        co_code=first + bytes(byte for pair in (*before, (load, argument & 0xFF)) for byte in pair) + rest,
        co_names=tuple(f"name{each}" for each in range(40_001)),
    )
    loads = [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"]
    assert globals_loaded_by(code) == set(loads) == {f"name{number}"}


def _named_only() -> object:
    return FILE


def test_a_copy_of_a_module_is_told_by_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch has some of the standard library, without what is written in C.
    copy = _copied("heapq")
    known = Describer().identity(copy)
    assert known == Describer().identity(_copied("heapq")) != Describer().identity(heapq)
    monkeypatch.setattr(copy, "nsmallest", copy.nlargest)
    assert Describer().identity(copy) != known


def _copied(name: str) -> types.ModuleType:
    specification = importlib.util.find_spec(name)
    assert specification is not None
    assert specification.loader is not None
    copy = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(copy)
    return copy
