"""What was registered for an operator of a library: functions, the modules that registered them, and kernels in C++.

Private names of torch, with canaries in tests/graph/test_private_torch.py: torch/_library/custom_ops.py,
torch/_library/simple_registry.py, torch/_decomp/__init__.py, and the dump of the dispatcher
(aten/src/ATen/core/dispatch/OperatorEntry.cpp).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS

from compilefarm.core.sources import UnknownSource, module_of_file, modules_that_call, top_of

_KERNEL = re.compile(r"^(?P<key>\w+)(\[alias\])?: registered at (?P<file>.+?):\d+ :: ", re.MULTILINE)
_SCHEMA = re.compile(r"^debug: registered at (?P<file>.+):\d+$", re.MULTILINE)
# Kernels under these keys are run where the artifact runs, and decide nothing of how it is compiled.
_OF_DEVICES = frozenset({"CPU", "CUDA", "HPU", "MPS", "MTIA", "PrivateUse1", "QuantizedCPU", "QuantizedCUDA", "XPU"})
# With `torch.library.impl` and the like a kernel seems to come from here.
_FILES_OF_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as the dispatcher knows it: its key, and the file that registered it."""

    key: str
    file: str

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")


def registered_functions(overload: Any) -> Iterator[Callable[..., Any]]:
    """Python functions that are registered for an operator and that torch still has."""
    name = overload.name().partition(".")[0]
    definition = OPDEFS.get(name)
    if definition is not None:
        yield from _functions_of(definition)
    entry = simple_registry.singleton.find(name)
    if entry.fake_impl.kernel is not None:
        yield entry.fake_impl.kernel.func
    yield from entry.torch_dispatch_rules._data.values()
    yield from overload.py_kernels.values()
    yield from filter(None, (table.get(overload) for table in _tables()))


def registering_modules(overload: Any) -> frozenset[str]:
    """Modules that registered something for an operator, and lie in no part of torch."""
    namespace, name = overload.namespace, overload.name().partition("::")[2]
    base = name.partition(".")[0]
    texts = {f"{namespace}::{name}", f"{namespace}::{base}", f"{namespace}::{base}("}
    found = modules_that_call(texts, mentioning=namespace, among=lambda _: True)
    found |= set(filter(None, map(module_of_file, _files(overload))))
    if found:
        # A Library that one module makes, another may register kernels with, by the name of the operator alone.
        tops = {top_of(module) for module in found}
        alone = {base, name, f"{base}(", f"{name}("}
        found |= modules_that_call(alone, mentioning=base, among=lambda module: top_of(module) in tops)
    return frozenset(found)


def registering_files(name: str, *, key: str) -> list[str]:
    """Files that registered kernels of an operator, by its name ("aten::gelu"), under a key of the dispatcher."""
    return [kernel.file for kernel in _kernels(name) if kernel.key == key]


def all_kernels() -> Iterator[tuple[str, Kernel]]:
    """Every operator of the process, by its name ("aten::add.Tensor"), with each kernel that is in use."""
    for name in torch._C._dispatch_get_all_op_names():
        yield from ((name, kernel) for kernel in _kernels(name))


def file_of_schema(name: str) -> str:
    """The file that registered an operator, as its build named it; empty where the dispatcher does not say it."""
    found = _SCHEMA.search(_dump(name))
    return found["file"] if found is not None else ""


def check_kernels(overload: Any, *, are_known: bool, has_modules: bool) -> None:
    """Checks that what is registered for an operator is what can be found of it.

    Args:
        overload: the operator.
        are_known: whether the files of the library that it comes from are.
        has_modules: whether modules were found that registered something for it.

    Raises:
        UnknownSource: some of it cannot be known.
    """
    for kernel in _kernels(overload.name()):
        if kernel.key in _OF_DEVICES or kernel.key.startswith("Sparse"):
            continue
        if not kernel.is_python and not are_known:
            raise UnknownSource(
                f"{kernel.key} is registered in C++ ({kernel.file}), by no library whose files are known"
            )
        if kernel.is_python and not (has_modules or OPDEFS.get(overload.name().partition(".")[0])):
            raise UnknownSource(f"{kernel.key} is registered by Python code that was not found")


def _functions_of(definition: Any) -> Iterator[Callable[..., Any]]:
    # torch/_library/custom_ops.py: CustomOpDef
    yield definition._init_fn
    yield from definition._backend_fns.values()
    yield from definition._torch_dispatch_fns.values()
    for function in (
        definition._abstract_fn, definition._setup_context_fn, definition._backward_fn, definition._vmap_fn,
    ):  # fmt: skip
        if function is not None:
            yield function


def _tables() -> Iterator[dict[Any, Callable[..., Any]]]:
    """What operators are replaced by while a graph is traced, or lowered to."""
    yield torch._decomp.decomposition_table
    yield torch._decomp.meta_table
    for module, name in (("decomposition", "decompositions"), ("lowering", "lowerings")):
        loaded = sys.modules.get(f"torch._inductor.{module}")
        if loaded is not None:
            yield getattr(loaded, name)


def _files(overload: Any) -> Iterator[Path]:
    """Python files that registered an operator, a kernel or a fake implementation of it."""
    named = [file_of_schema(overload.name()), *(kernel.file for kernel in _kernels(overload.name()))]
    # torch/_library/fake_impl.py keeps where a fake implementation was registered, as "file:line".
    fake = simple_registry.singleton.find(overload.name().partition(".")[0]).fake_impl.kernel
    named += [fake.source.rpartition(":")[0]] if fake is not None else []
    for file in named:
        if file.endswith(".py") and not file.startswith(_FILES_OF_TORCH):
            yield Path(file).resolve()


def _kernels(name: str) -> list[Kernel]:
    return [Kernel(key=found["key"], file=found["file"]) for found in _KERNEL.finditer(_dump(name))]


def _dump(name: str) -> str:
    return str(torch._C._dispatch_dump(name))
