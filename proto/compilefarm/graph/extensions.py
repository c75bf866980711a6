"""Kernels of operators of torch that shared objects of others have registered, in C++.

To ask the dispatcher about all operators takes 0.06 s. So it is asked whenever the process has loaded something that
can register kernels, which few libraries can, and about those operators that it names.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch

from compilefarm.graph.operators import NAMESPACES_OF_TORCH, is_of_torch
from compilefarm.graph.registrations import Kernel, file_of_schema, native_kernels_from_elsewhere
from compilefarm.graph.shared_objects import names_of_symbols, operators_named
from compilefarm.torch_internals.operators import registered_names

# Files of which something is mapped to be executed (man 5 proc_pid_maps), and which of them cannot matter: torch's own,
# libraries of artifacts, whose folders are gone by now, and Triton's, which has more symbols than all others.
_LOADED = re.compile(r" r.xp [^/\n]*(/.*)")
_HARMLESS = re.compile(
    rf"{re.escape(str(Path(torch.__file__).parent))}/"
    r"|.*/compilefarm-[^/]+/[^/]+ \(deleted\)$|.*/triton/_C/libtriton\.so$"
)
# Parts of the names by which libraries register kernels: torch::Library, c10::RegisterOperators, and the stable
# interface (torch/library.h, aten/src/ATen/core/op_registration/op_registration.h, torch/csrc/stable/library.h).
_REGISTRARS = (b"5torch7Library", b"RegisterOperators", b"torch_library_")
# Names of keys of devices that no request is for contain one of these.
_OTHER_DEVICES = ("HPU", "IPU", "Lazy", "MAIA", "MPS", "MTIA", "PrivateUse", "Vulkan", "XLA", "XPU")
# Where sources of torch lie in its tree, and what its build makes of them.
_SOURCES = r"(?:(?:build/)?|.*/)(?:aten/src/ATen|torch/csrc|c10)/"

# How names of operators begin, all of them.
EVERYTHING: Collection[str] = ("",)

_looked_at: set[str] = set()
_found: str | None = None


def find_foreign_kernel() -> str | None:
    """A kernel of an operator of torch that a library has registered, for a message; None if there is none.

    What a library registers later than when it is loaded is not seen, if nothing else is loaded after that.
    """
    global _found
    new = _loaded_files() - _looked_at
    named = _named_in(new)
    if _found is None and named:
        _found = next(foreign_kernels(named), None)
    _looked_at.update(new)
    return _found


def look_at_loaded_files() -> None:
    """Has what names the shared objects hold that are loaded by now be known, which is most of the time it takes."""
    _named_in(_loaded_files())


def loaded_libraries() -> Iterator[str]:
    """Files that this process has mapped to be executed, without torch's own and others that register no kernels."""
    return (file for file in _loaded_files() if not _HARMLESS.match(file))


def registers_kernels(library: Path) -> bool:
    """Whether a shared object may register kernels of operators, by the names that it asks others for.

    Raises:
        OSError, struct.error, LookupError: it was removed, is none, or does not say what stands where.
    """
    symbols = names_of_symbols(library)
    return any(registrar in symbols for registrar in _REGISTRARS)


def _loaded_files() -> set[str]:
    return set(_LOADED.findall(Path("/proc/self/maps").read_text()))


def _named_in(files: Iterable[str]) -> set[str]:
    return {name for file in files if not _HARMLESS.match(file) for name in registrable(Path(file))}


def foreign_kernels(named: Collection[str] = EVERYTHING) -> Iterator[str]:
    """All of them that there are in this process, whoever registered them.

    Args:
        named: how the names of operators begin that are asked for.
    """
    # Torch's own come from one tree of sources; of a build that names files within it, from a place in the tree.
    tree = re.split(r"(build/)?aten/src/ATen/", file_of_schema("aten::add.Tensor"), maxsplit=1)[0]
    among = (name for name in registered_names() if is_of_torch(name) and name.startswith(tuple(named)))
    for name, kernel in native_kernels_from_elsewhere(re.escape(tree) + _SOURCES, among=among):
        if _decides(kernel):
            yield f"the kernel of {name} for {kernel.key} (registered in {kernel.file})"


@functools.cache
def registrable(library: Path) -> Collection[str]:
    """How the names begin of all operators of torch that a shared object may register kernels for: by the names that
    it asks others for, and by those that stand in it."""
    try:
        if not registers_kernels(library):
            return ()
        return operators_named(library, namespaces=NAMESPACES_OF_TORCH, operators=_operators_of_torch())
    except (OSError, struct.error, LookupError):
        # It was removed, is none, or does not say what stands where.
        return EVERYTHING


@functools.cache
def _operators_of_torch() -> frozenset[str]:
    """Without overloads. The name of one that comes later is taken for the beginning of others'."""
    return frozenset(name.partition(".")[0] for name in registered_names() if is_of_torch(name))


def _decides(kernel: Kernel) -> bool:
    return not any(device in kernel.key for device in _OTHER_DEVICES)
