"""Operators that code of this process has registered in Python: its own, not torch's and not those of an installed
library whose version keys say anyway.

torch's caches know an operator by its name. What a trace runs of it (a composite kernel, a gradient, what says shapes)
is part of the compiled graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from compilefarm.core.digests import digest_of
from compilefarm.core.distributions import is_of_library_of_torch
from compilefarm.graph.operators import NAMESPACES_OF_TORCH, describe_operators
from compilefarm.graph.registrations import FILES_OF_TORCH, kernels_run_by_traces
from compilefarm.torch_internals import registrations
from compilefarm.torch_internals.operators import registered_names

# Further namespaces in which torch itself registers operators from Python, torch 2.11 to 2.15.
FURTHER_OF_TORCH = frozenset(
    {
        "_dtensor", "_inductor_test", "_native", "c10d", "c10d_functional", "coor", "cplib", "debug_mode_ops",
        "debugprims", "export", "flex_gemm", "flex_lib", "fsdp", "inductor", "mempool", "mkl", "onnx", "onnx_symbolic",
        "rngprims", "streams", "symm_mem",
    }
)  # fmt: skip


class OwnOperators:
    """Describes them, anew when something was registered since. Threads share it."""

    def __init__(self) -> None:
        self._registered: Set[str] = frozenset()
        self._own: frozenset[str] = frozenset()
        self._described: tuple[object, str] = ((), "")

    def digest(self, registered: Set[str]) -> str:
        """What they are; empty if there are none.

        Args:
            registered: what `kernels_from_python` tells.

        Raises:
            Bypass: of one it cannot be said.
        """
        if registered is not self._registered:
            self._own, self._registered = _own_among(registered), registered
        if not self._own:
            return ""
        # A gradient, or shapes, may be registered later than the operator.
        functions = {name: [*map(id, _functions_of(name))] for name in self._own}
        described, digest = self._described
        if described != functions:
            content = [each.SerializeToString(deterministic=True) for each in describe_operators(self._own)]
            digest = digest_of(b"".join(content))
            self._described = functions, digest
        return digest


def _own_among(registered: Set[str]) -> frozenset[str]:
    """The process's own operators, with overloads, among those of which something was registered in Python."""
    # As "library/operator/Meta".
    named = {"::".join(entry.split("/")[:2]).partition(".")[0] for entry in registered}
    foreign = {name for name in named if name.partition("::")[0] not in NAMESPACES_OF_TORCH | FURTHER_OF_TORCH}
    return frozenset(
        name for name in (registered_names() if foreign else ()) if name.partition(".")[0] in foreign and _is_own(name)
    )


def _is_own(name: str) -> bool:
    files = [kernel.file for kernel in kernels_run_by_traces(name) if kernel.is_python]
    files += [file for function in _functions_of(name) for file in _files_of(function, set())]
    # What torch's decorators register seems to come from torch.
    found = [Path(file) for file in files if not file.startswith(FILES_OF_TORCH)]
    return not (found and all(map(is_of_library_of_torch, found)))


def _files_of(function: object, seen: set[int]) -> Iterator[str]:
    """The file of a function; and of those that it holds, where torch has wrapped it into one of its own."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    yield function.__code__.co_filename
    if function.__code__.co_filename.startswith(FILES_OF_TORCH):
        for cell in function.__closure__ or ():
            yield from _files_of(_content_of(cell), seen)


def _content_of(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # It is empty.
        return None


def _functions_of(name: str) -> list[Callable[..., Any]]:
    fake = registrations.fake_implementation(name)
    return [*registrations.functions_run_by_traces(name), *(fake[:1] if fake is not None else ())]
