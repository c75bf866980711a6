"""What was registered for an operator of a library: functions, the modules that registered them, and kernels in C++."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compilefarm.core.sources import UnknownSource, calls_something_with, module_of_file, modules_that_call, top_of
from compilefarm.torch_internals import registrations
from compilefarm.torch_internals.decompositions import decomposition_tables, inductor_tables

_KERNEL = re.compile(r"^(?P<key>\w+)(\[alias\])?: registered at (?P<file>.+?):\d+ :: ", re.MULTILINE)
_SCHEMA = re.compile(r"^debug: registered at (?P<file>.+):\d+$", re.MULTILINE)
# torch/library.py: Library
_LIBRARY_KINDS = frozenset({"DEF", "FRAGMENT", "IMPL"})
# Kernels under these keys are run where the artifact runs, and decide nothing of how it is compiled.
_OF_DEVICES = frozenset({"CPU", "CUDA", "HPU", "MPS", "MTIA", "PrivateUse1", "QuantizedCPU", "QuantizedCUDA", "XPU"})
# With the separator: files of torchvision lie beside it. With `torch.library.impl` and the like a kernel seems to come
# from here.
FILES_OF_TORCH = str(Path(torch.__file__).parent) + os.sep
_kernels_seen: Set[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as the dispatcher knows it: its key, and the file that registered it."""

    key: str
    file: str

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")


def kernels_from_python() -> Set[str]:
    """What Python has registered in this process, as "aten/gelu/AutogradCPU": the same object for as long as it is the
    same. There are two thousand of them, and who is given them once compares them for all that it asks.
    """
    global _kernels_seen
    now = registrations.implementations_from_python()
    # Of two threads each takes its own, if something is registered meanwhile.
    seen = _kernels_seen
    if now != seen:
        _kernels_seen = seen = frozenset(now)
    return seen


def registered_functions(overload: Any) -> Iterator[Callable[..., Any]]:
    """Python functions that are registered for an operator and that torch still has."""
    name = overload.name()
    yield from registrations.functions_of_custom_op(name)
    fake = registrations.fake_implementation(name)
    if fake is not None:
        yield fake[0]
    yield from registrations.torch_dispatch_rules(name)
    yield from overload.py_kernels.values()
    yield from filter(None, (table.get(overload) for table in _tables()))


def registering_modules(overload: Any) -> frozenset[str]:
    """Modules that registered something for an operator, and lie in no part of torch."""
    name = overload.name()
    namespace, base = name.partition("::")[0], _base_of(name)
    found = modules_that_call(_full_names(name), mentioning=namespace, among=lambda _: True)
    found |= set(filter(None, map(module_of_file, _files(overload))))
    holding = registrations.modules_with_libraries_of(name)
    found |= modules_that_call({namespace}, mentioning=namespace, among=holding.__contains__) if holding else set()
    found = found or _modules_with_passing_libraries(namespace, base, bare=_bare_names(name))
    if found:
        # A Library that one module makes, another may register kernels with, by the name of the operator alone.
        tops = {top_of(module) for module in found}
        found |= modules_that_call(_bare_names(name), mentioning=base, among=lambda module: top_of(module) in tops)
    return frozenset(found)


def _modules_with_passing_libraries(namespace: str, base: str, *, bare: set[str]) -> set[str]:
    """Modules that make a torch.library.Library, keep it in none of their attributes, and register something with it.

    torchvision._meta_registrations does, for kernels in C++ of which Python knows no more than the name.
    """
    making = modules_that_call({namespace}, mentioning=namespace, among=lambda _: True)
    making &= modules_that_call(_LIBRARY_KINDS, mentioning=namespace, among=making.__contains__)
    return modules_that_call(bare, mentioning=base, among=making.__contains__) if making else set()


def may_register(name: str, path: Path) -> bool:
    """Whether a file of Python, loaded or not, is one that registers something for an operator, by what it calls."""
    namespace, base = name.partition("::")[0], _base_of(name)
    names = _full_names(name) | {namespace}
    return calls_something_with(names, path, mentioning=namespace) or calls_something_with(
        _bare_names(name), path, mentioning=base
    )


def _full_names(name: str) -> set[str]:
    """How calls name an operator that register something for it: with its namespace, maybe without its overload."""
    full = name.partition(".")[0]
    return {name, full, f"{full}("}


def _bare_names(name: str) -> set[str]:
    """The same without the namespace."""
    bare, base = name.partition("::")[2], _base_of(name)
    return {base, bare, f"{base}(", f"{bare}("}


def _base_of(name: str) -> str:
    return name.partition("::")[2].partition(".")[0]


def registering_files(name: str, *, key: str) -> list[str]:
    """Files that registered kernels of an operator, by its name ("aten::gelu"), under a key of the dispatcher."""
    # Most of what the dispatcher says is of other keys.
    lines = (line for line in registrations.dispatcher_dump(name).split("\n") if line.startswith(key))
    return [found["file"] for line in lines if (found := _KERNEL.match(line)) is not None and found["key"] == key]


def has_unused_kernel(name: str) -> bool:
    """Whether an operator has a kernel in the place of which another was registered."""
    return " (inactive): registered at " in registrations.dispatcher_dump(name)


def native_kernels_from_elsewhere(files: str, *, among: Iterable[str]) -> Iterator[tuple[str, Kernel]]:
    """Operators ("aten::add.Tensor"), with each kernel in use that C++ of other files has registered.

    Args:
        files: how the names of those begin that are not asked for, as a regular expression.
        among: names of operators of this process.
    """
    # To look for such a file takes a twentieth of the time that it takes to make kernels of what the dispatcher says.
    elsewhere = re.compile(rf": registered at (?!{files}|.*\.py:)")
    for name in among:
        if elsewhere.search(registrations.dispatcher_dump(name)):
            kernels = [each for each in _kernels(name) if not (each.is_python or re.match(files, each.file))]
            yield from ((name, kernel) for kernel in kernels)


def file_of_schema(name: str) -> str:
    """The file that registered an operator, as its build named it; empty where the dispatcher does not say it."""
    found = _SCHEMA.search(registrations.dispatcher_dump(name))
    return found["file"] if found is not None else ""


def kernels_run_by_traces(name: str) -> list[Kernel]:
    """Kernels of an operator, by its name, that decide what a trace finds of it: all but those of devices."""
    return [each for each in _kernels(name) if not (each.key in _OF_DEVICES or each.key.startswith("Sparse"))]


def check_kernels(overload: Any, *, are_known: bool, has_modules: bool) -> None:
    """Checks that what is registered for an operator is what can be found of it.

    Args:
        overload: the operator.
        are_known: whether the files of the library that it comes from are.
        has_modules: whether modules were found that registered something for it.

    Raises:
        UnknownSource: some of it cannot be known.
    """
    for kernel in kernels_run_by_traces(overload.name()):
        if not kernel.is_python and not are_known:
            raise UnknownSource(
                f"{kernel.key} is registered in C++ ({kernel.file}), by no library whose files are known"
            )
        if kernel.is_python and not (has_modules or registrations.is_custom_op(overload.name())):
            raise UnknownSource(f"{kernel.key} is registered by Python code that was not found")


def _tables() -> Iterator[dict[Any, Callable[..., Any]]]:
    """What operators are replaced by while a graph is traced, or lowered to."""
    tables = decomposition_tables()
    yield from (tables["post_autograd"], tables["meta"])
    yield from (table for _, table in inductor_tables())


def _files(overload: Any) -> Iterator[Path]:
    """Python files that registered an operator, a kernel or a fake implementation of it."""
    named = [file_of_schema(overload.name()), *(kernel.file for kernel in _kernels(overload.name()))]
    fake = registrations.fake_implementation(overload.name())
    named += [fake[1].rpartition(":")[0]] if fake is not None else []
    for file in named:
        if file.endswith(".py") and not file.startswith(FILES_OF_TORCH):
            yield Path(file).resolve()


def _kernels(name: str) -> list[Kernel]:
    found = _KERNEL.finditer(registrations.dispatcher_dump(name))
    return [Kernel(key=each["key"], file=each["file"]) for each in found]
