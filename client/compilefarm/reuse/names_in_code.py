"""What code refers to by name: globals and what hangs on them, and the module whose globals they are."""

from __future__ import annotations

import abc
import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from compilefarm.torch_internals.operators import holds_operators

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOADS_GLOBALS = tuple(dis.opmap[name] for name in _GLOBALS)
# Where the standard library lies, and what of it is written in C.
_PYTHON = os.path.dirname(os.__file__)
_OF_PYTHON = (
    _PYTHON,
    os.path.join(_PYTHON, "lib-dynload"),
    os.path.join(sys.base_exec_prefix, sys.platlibdir, os.path.basename(_PYTHON), "lib-dynload"),
)
# What lies beside the standard library, and is none of it; and where torch lies.
_OTHERS_OF_PYTHON = frozenset({"site-packages", "dist-packages"})
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
# What is written in C, and what each class has of Python.
C_CALLABLES = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
_OF_EACH_CLASS = frozenset(
    {"__dict__", "__doc__", "__hash__", "__module__", "__qualname__", "__slots__", "__weakref__"}
)
# Whose classes hide nothing that they hold.
_PLAIN_METACLASSES = frozenset({type, abc.ABCMeta})
_NOT_FOUND = object()
# What each module has of its class.
OF_ALL_MODULES = frozenset(name for kind in types.ModuleType.__mro__ for name in vars(kind))


def chains_of(code: types.CodeType) -> Iterator[str]:
    """Globals that code names, with the attributes that it looks up on each ("torch.nn.functional.gelu"), and those
    that functions within it name."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code) if _loads_globals(code) else ():
        if instruction.opname in _ATTRIBUTES and chain:
            chain.append(instruction.argval)
            continue
        if chain:
            yield ".".join(chain)
        chain = [instruction.argval] if instruction.opname in _GLOBALS else []
    if chain:
        yield ".".join(chain)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from chains_of(constant)


def _loads_globals(code: types.CodeType) -> bool:
    """Whether code itself may load globals. What data classes are given has many instructions, and loads none."""
    operations = code.co_code[::2]
    return any(each in operations for each in _LOADS_GLOBALS)


def globals_loaded_by(code: types.CodeType) -> set[str]:
    """Names of globals that code itself loads. Generated code has tens of thousands of instructions, most of others."""
    operations, arguments, found = code.co_code[::2], code.co_code[1::2], set[str]()
    place = operations.find(_LOAD_GLOBAL)
    while place >= 0:
        argument = int(arguments[place])
        for shift, before in enumerate(range(place - 1, -1, -1), start=1):
            if operations[before] != dis.EXTENDED_ARG:
                break
            argument |= arguments[before] << 8 * shift
        # The last bit says whether the global is called.
        found.add(code.co_names[argument >> 1])
        place = operations.find(_LOAD_GLOBAL, place + 1)
    return found


def static_attribute(owner: Any, name: str, default: object) -> Any:
    """An attribute of a module or class that no code computes, as inspect.getattr_static finds it: that function also
    looks for classes which hide what they hold, and takes ten times as long. Of operators, what torch finds."""
    if type(owner) is types.ModuleType and name not in OF_ALL_MODULES:
        return owner.__dict__.get(name, default)
    if type(owner) in _PLAIN_METACLASSES:
        # Most have it themselves, and come first.
        if (found := owner.__dict__.get(name, _NOT_FOUND)) is not _NOT_FOUND:
            return found
        for kind in owner.__mro__:
            if type(kind) not in _PLAIN_METACLASSES:
                break
            if (found := kind.__dict__.get(name, _NOT_FOUND)) is not _NOT_FOUND:
                return found
        else:
            if not any(name in kind.__dict__ for kind in type(owner).__mro__):
                return default
    if isinstance(owner, types.ModuleType) and holds_operators(owner):
        return getattr(owner, name, default)
    return inspect.getattr_static(owner, name, default)


def answering_function(module: types.ModuleType) -> Any:
    """What a module has for names that it does not hold (PEP 562, or a class of its own), if that is none of a release;
    None otherwise."""
    own = vars(module).get("__getattr__") or getattr(type(module), "__getattr__", None)
    return None if own is None or is_of_a_release(own) else own


def value_at(module: str, qualified_name: str) -> Any:
    """What a qualified name leads to in a module that is imported, without running code; None if nothing is there."""
    if "<locals>" in qualified_name:
        # To what a function makes, no name leads.
        return None
    value: Any = sys.modules.get(module)
    if type(value) is types.ModuleType and qualified_name not in OF_ALL_MODULES and "." not in qualified_name:
        # As static_attribute finds it: most classes and functions are such.
        return value.__dict__.get(qualified_name)
    for name in qualified_name.split("."):
        value = static_attribute(value, name, None)
    return value


def function_at(module: str, qualified_name: str) -> Any:
    """The same, and if that is a method, a property, a cache or the like: the function in it."""
    value = value_at(module, qualified_name)
    for name in ("__func__", "fget", "func", "__wrapped__"):
        inner = getattr(value, name, None) if not isinstance(value, types.FunctionType) else None
        if isinstance(inner, types.FunctionType):
            return inner
    return value


def is_found_by_name(module: types.ModuleType) -> bool:
    """Whether a module is the one that is imported by its name, or a namespace of operators, which nobody imports."""
    name = module.__name__
    return sys.modules.get(name) is module or (
        holds_operators(module) and value_at(*name.split(".", maxsplit=1)) is module
    )


def is_copy_of_release(module: types.ModuleType) -> bool:
    """Whether a module was made of the same file as one of the standard library: torch makes copies without parts that
    are written in C (torch/_dynamo/polyfills: import_fresh_module)."""
    known = (
        vars(sys.modules[module.__name__]) if module.__name__ in sys.stdlib_module_names & sys.modules.keys() else {}
    )
    file = vars(module).get("__file__")
    return file is not None and known.get("__file__") == file


# What was imported when it was last asked, and which module each file is of. It is kept, so that nothing else has its
# address.
_last_seen: tuple[list[object], dict[str, types.ModuleType | None]] = ([], {})


# What a variant is said to rest on beside the state, if it describes functions whose file several modules are of.
SHARED_FILES = "files of several modules"


class Modules:
    """The modules of this moment, by the file that each is of.

    Who records names modules by the files of code, which takes a look at every module. Who compares has functions, and
    their globals say which module they are of: a description tells its name, by which all that the code names is
    recorded, too. So another module of the same file makes no difference, unless there was one when it was recorded.

    Args:
        by_file: whether each module is looked at, and none is found for a file that several are of.

    Attributes:
        found_shared: whether somebody has asked for the globals of code whose file several modules are of.
    """

    def __init__(self, *, by_file: bool = True) -> None:
        global _last_seen
        self.found_shared = False
        # By the file that code says it is of and the address of its globals, with what keeps these alive.
        self._own_globals: dict[tuple[str, int], tuple[object, str]] = {}
        self._of_files: Mapping[str, types.ModuleType | None] | None = None
        if by_file:
            imported: list[object] = list(sys.modules.values())
            before, of_files = _last_seen
            if list(map(id, imported)) != list(map(id, before)):
                of_files = _by_file(imported)
                _last_seen = imported, of_files
            self._of_files = of_files

    def name_of(self, code: types.CodeType) -> str:
        """The module that code is of; empty if it is of none that can be imported, or of several of one file."""
        if is_frozen(code):
            return code.co_filename.removeprefix("<frozen ").removesuffix(">")
        assert self._of_files is not None, "these modules were not looked at"
        module = self._of_files.get(code.co_filename)
        if module is None or module.__dict__.get("__file__") != code.co_filename:
            return ""
        return module.__name__ if sys.modules.get(module.__name__) is module else ""

    def owner_of_globals(self, code: types.CodeType, scope: Mapping[str, object]) -> str:
        """The module whose globals a function has, if its code is of that module; empty otherwise."""
        place = code.co_filename, id(scope)
        known = self._own_globals.get(place)
        if known is None:
            known = self._own_globals[place] = scope, self._owner_of_globals(code, scope)
        return known[1]

    def _owner_of_globals(self, code: types.CodeType, scope: Mapping[str, object]) -> str:
        if self._of_files is None and not is_frozen(code):
            return _named_by_globals(code, scope)
        if self._of_files is not None and self._of_files.get(code.co_filename, _NOT_FOUND) is None:
            self.found_shared = True
        # By what code says of itself: collections.abc is frozen as _collections_abc.
        name = self.name_of(code)
        module = sys.modules.get(name)
        return name if module is not None and vars(module) is scope else ""

    def has_own_globals(self, code: types.CodeType, scope: Mapping[str, object]) -> bool:
        """Whether the globals of a function are those of the module that its code is of."""
        return bool(self.owner_of_globals(code, scope))

    def require_own_globals(self, code: types.CodeType, scope: Mapping[str, object]) -> str | None:
        """Returns why what code names cannot be looked up in its module; None if it can."""
        return None if self.has_own_globals(code, scope) else f"{code.co_qualname}, whose globals are of no module"


def _named_by_globals(code: types.CodeType, scope: Mapping[str, object]) -> str:
    """The module that globals say they are of, if they are its own, and it is of the file of some code."""
    name = scope.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if not isinstance(module, types.ModuleType) or module.__dict__ is not scope:
        return ""
    file = scope.get("__file__")
    return str(name) if type(file) is str and file == code.co_filename else ""


def _by_file(imported: Iterable[object]) -> dict[str, types.ModuleType | None]:
    """Modules by their files; None for a file that several are of."""
    known: dict[str, types.ModuleType | None] = {}
    for each in imported:
        if not isinstance(each, types.ModuleType) or type(file := each.__dict__.get("__file__")) is not str:
            continue
        if known.setdefault(file, each) is not each:
            known[file] = None
    return known


def is_frozen(code: types.CodeType) -> bool:
    """Whether code is of a module that the interpreter brings along, whose version is compared."""
    return code.co_filename.startswith("<frozen ")


def root_of(module: str) -> str:
    """The package that a module is in, by name."""
    return module.partition(".")[0]


def is_module_of_a_release(module: str) -> bool:
    """Whether a module, by its name, is of torch or of the standard library, whose versions are compared, and not one
    that a program has put among them."""
    if root_of(module) != "torch" and not is_module_of_python(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or (isinstance(file, str) and is_file_of_a_release(file))


@functools.lru_cache(maxsize=10_000)
def is_file_of_a_release(file: str) -> bool:
    """Whether a file is of torch or of the standard library, by where it lies."""
    if file.startswith(("<frozen ", _TORCH)):
        return True
    place = next((each for each in _OF_PYTHON if file.startswith(each + os.sep)), None)
    return place is not None and file[len(place) + 1 :].partition(os.sep)[0] not in _OTHERS_OF_PYTHON


# Packages that are called as one of the standard library, as they were imported when last asked, and whether they are.
_known_roots: dict[str, tuple[object, bool]] = {}


def is_module_of_python(module: str) -> bool:
    """Whether a module, by its name, is of the standard library, and not of a program that has a package of that name:
    "code" is a common one."""
    root = root_of(module)
    if root not in sys.stdlib_module_names:
        return False
    imported = sys.modules.get(root)
    known = _known_roots.get(root)
    if known is None or known[0] is not imported:
        known = _known_roots[root] = imported, _is_of_python(root, imported)
    return known[1]


def _is_of_python(name: str, module: object) -> bool:
    # Some of what the interpreter brings along says where its source lies, under another name.
    if name in sys.builtin_module_names or getattr(getattr(module, "__spec__", None), "origin", None) == "frozen":
        return True
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return False
    folder, own_name = os.path.split(file)
    return (os.path.dirname(folder) if own_name.startswith("__init__.") else folder) in _OF_PYTHON


def is_of_a_release(thing: Any) -> bool:
    """Whether a class or function is of torch or of the standard library, whose versions are compared.

    The module that it names does not say so: functools.wraps copies that of what is wrapped, a class that torch or the
    standard library makes for a program has the module that made it, and what exec makes may have any or none. So
    functions are known by the file of their code, and by the module whose globals they have.
    """
    if isinstance(thing, types.FunctionType):
        return is_file_of_a_release(thing.__code__.co_filename) and _are_of_a_module(thing.__globals__)
    if isinstance(thing, (types.MethodType, staticmethod, classmethod)):
        return is_of_a_release(thing.__func__)
    if isinstance(thing, functools._lru_cache_wrapper):
        return is_of_a_release(thing.__wrapped__)
    if thing is not None and not isinstance(thing, (type, *C_CALLABLES)):
        # An object may hold what is a program's, as functools.partial does.
        return False
    module_name = getattr(thing, "__module__", None)
    if not isinstance(thing, type) or not isinstance(module_name, str):
        return module_name is None or is_module_of_a_release(module_name)
    if not is_module_of_a_release(module_name):
        return False
    return _is_named(thing, module_name) or all(
        name in _OF_EACH_CLASS or isinstance(each, C_CALLABLES) for name, each in vars(thing).items()
    )


def _are_of_a_module(scope: dict[str, Any]) -> bool:
    """Whether the globals of a function are those of a module that is imported, and no copy of them."""
    # As the import has set it: collections.abc is also called _collections_abc.
    module = sys.modules.get(str(getattr(scope.get("__spec__"), "name", scope.get("__name__"))))
    held = getattr(module, "__dict__", {})
    if held is scope or type(module) is types.ModuleType:
        return held is scope
    # Some are put in the place of the module that they hold (torch/backends/__init__.py: PropModule), or that has made
    # their class (torch/_VF.py).
    return any(isinstance(each, types.ModuleType) and vars(each) is scope for each in held.values()) or any(
        isinstance(each, types.FunctionType) and each.__globals__ is scope for each in vars(type(module)).values()
    )


def _is_named(kind: type, module: str) -> bool:
    # Most are at once found among the names of their module.
    names = getattr(sys.modules.get(module), "__dict__", {})
    return names.get(kind.__qualname__) is kind or value_at(module, kind.__qualname__) is kind
