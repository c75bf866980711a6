"""Cases of tests/reuse/hazards.py about functions that Dynamo calls and does not trace: by way of a class that has its
own answer to an index, and of what is registered for operators of libraries; and about questions that graphs ask."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.reuse.cases import X, case, patched, unsaid

_HERE = sys.modules[__name__]
_FACTOR = 2
# Tests with another release may run at the same time.
_FILE = str(Path(tempfile.gettempdir(), f"hazard_of_a_file-{torch.__version__}"))


class Reads:
    def method(self) -> int:
        return _FACTOR

    @property
    def factor(self) -> int:
        return _FACTOR


def reads() -> int:
    return _FACTOR


_PARTIAL = functools.partial(reads)


def _indexed(answer: Callable[[], int]) -> Callable[[torch.Tensor], torch.Tensor]:
    class Indexed:
        def __class_getitem__(cls, _: Any) -> int:
            return answer()

    return lambda x: x * Indexed[0]  # type: ignore[misc]


def _imports() -> int:
    from tests.reuse.called_hazards import reads

    return reads()


@case
def a_method_that_a_called_function_calls(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: Reads().method()), (X,)


@case
def a_property_that_a_called_function_reads(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: Reads().factor), (X,)


@case
def a_partial_function_that_a_called_function_calls(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: _PARTIAL()), (X,)


@case
def what_a_called_function_imports(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(_imports), (X,)


# What of a program says that it is of torch or of the standard library, whose sources are those of the release.


@functools.wraps(torch.empty_like)
def _like_one_of_torch() -> int:
    return _FACTOR


@case
def a_called_function_that_wraps_one_of_torch(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: int(_like_one_of_torch())), (X,)


_ANSWERS = {"__class_getitem__": classmethod(lambda *_: _FACTOR)}
_MADE: Any = dataclasses.make_dataclass("_MADE", (), namespace=_ANSWERS)


@case
def a_class_that_the_standard_library_made(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield lambda x: x * _MADE[0], (X,)


_PACKAGE = "antigravity"
_SOURCE = """
FACTOR = 2
class Indexed:
    def __class_getitem__(cls, _):
        return FACTOR
def by_index(x):
    return x * Indexed[0]
"""


@case
def a_package_that_is_called_as_one_of_the_standard_library(changed: bool) -> Iterator[Any]:
    folder = Path(os.environ["HAZARDS_SOURCES"], "shadowing")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_PACKAGE}.py").write_text(_SOURCE)
    sys.path.insert(0, str(folder))
    module = importlib.import_module(_PACKAGE)
    sys.path.remove(str(folder))
    with patched(module, "FACTOR", 3, when=changed):
        yield module.by_index, (X,)


@unsaid
def a_name_that_a_called_function_finds_by_text(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: int(getattr(_HERE, "_FACTOR"))), (X,)  # noqa: B009


@unsaid
def a_name_that_a_called_function_finds_among_globals(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3, when=changed):
        yield _indexed(lambda: int(globals()["_FACTOR"])), (X,)


@unsaid
def a_variable_that_a_called_function_reads(changed: bool) -> Iterator[Any]:
    with patched(os, "environ", {**os.environ, "HAZARD": "3"}, when=changed):
        yield _indexed(lambda: int(os.getenv("HAZARD", "2"))), (X,)


@unsaid
def a_file_that_a_called_function_looks_for(changed: bool) -> Iterator[Any]:
    if changed:
        Path(_FILE).touch()
    yield _indexed(lambda: 3 if os.path.exists(_FILE) else 2), (X,)
    Path(_FILE).unlink(missing_ok=True)


@unsaid
def a_state_that_a_called_function_asks_for(changed: bool) -> Iterator[Any]:
    torch.autograd.set_detect_anomaly(changed)
    yield _indexed(lambda: 3 if torch.is_anomaly_enabled() else 2), (X,)
    torch.autograd.set_detect_anomaly(False)


# What is registered for operators decides the dtypes of their results, by which programs branch.

_NAMESPACE = "hazard_called"


def _by_dtype(operator: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def branches(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: torch.Tensor = getattr(torch.ops.hazard_called, operator)(x)
        return result.double() * (5 if result.dtype in (torch.float16, torch.float64) else 2)

    return branches


def _library(schema: str) -> torch.library.Library:
    vars(torch.ops).pop(_NAMESPACE, None)
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(schema)
    return library


@case
def what_autocast_makes_of_an_operator(changed: bool) -> Iterator[Any]:
    library = _library("cast(Tensor x) -> Tensor")
    library.impl("cast", torch.clone, "CPU")
    torch.library.register_fake("hazard_called::cast", torch.empty_like, lib=library)
    dtype = torch.float16 if changed else torch.bfloat16
    torch.library.register_autocast("hazard_called::cast", "cpu", dtype, lib=library)
    yield _by_dtype("cast"), (X,)
    library._destroy()


@case
def what_autocast_makes_of_an_operator_of_functions(changed: bool) -> Iterator[Any]:
    vars(torch.ops).pop(_NAMESPACE, None)
    made = torch.library.custom_op("hazard_called::copied", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(torch.empty_like)
    made.register_autocast("cpu", torch.float16 if changed else torch.bfloat16)
    yield _by_dtype("copied"), (X,)


def _plain(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float64)


@case
def another_kernel_for_python(changed: bool) -> Iterator[Any]:
    library = _library("widened(Tensor x) -> Tensor")
    library.impl("widened", torch.Tensor.double if changed else torch.clone, "CPU")
    overload = torch.ops.hazard_called.widened.default
    overload.py_impl(torch.DispatchKey.Meta)(_wide if changed else _plain)
    yield _by_dtype("widened"), (X,)
    library._destroy()


@unsaid
def another_kernel_that_nothing_tells(changed: bool) -> Iterator[Any]:
    library = _library("widened(Tensor x) -> Tensor")
    library.impl("widened", torch.Tensor.double if changed else torch.clone, "CPU")
    library.impl("widened", _wide if changed else _plain, "Meta")
    yield _by_dtype("widened"), (X,)
    library._destroy()


def _branching(name: str, key: str) -> None:
    """A case of a kernel that Python registers above those of devices, which runs while a graph is traced."""

    def another(changed: bool) -> Iterator[Any]:
        library = _library("doubled(Tensor x) -> Tensor")
        library.impl("doubled", torch.clone, "CPU")
        torch.library.register_fake("hazard_called::doubled", torch.empty_like, lib=library)
        library.impl("doubled", torch.Tensor.double if changed else torch.clone, key)
        yield _by_dtype("doubled"), (X,)
        library._destroy()

    another.__name__ = name
    unsaid(another)


_branching("another_kernel_for_gradients", "Autograd")
_branching("another_kernel_for_views", "ADInplaceOrView")


_KIND = torch.float32


@torch.compiler.allow_in_graph
def allowed_in_graphs(x: torch.Tensor) -> torch.Tensor:
    return x.to(_KIND)


def _by_kind(x: torch.Tensor) -> torch.Tensor:
    result = allowed_in_graphs(x)
    return result.double() * (5 if result.dtype is torch.float64 else 2)


@unsaid
def what_a_function_reads_that_is_allowed_in_a_branch(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_KIND", torch.float64, when=changed):
        yield lambda x: torch.cond(x.sum() > -100, _by_kind, lambda x: x.double(), (x,)), (X,)


# Dynamo asks torch itself, and leaves the question in the graph.


def asks_for_a_backend_of_attention(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch._C._get_overrideable_sdp_enabled() else 3)


@case
def an_answer_of_torch_itself(changed: bool) -> Iterator[Any]:
    torch._C._set_sdp_use_overrideable(not changed)
    yield asks_for_a_backend_of_attention, (X,)
    torch._C._set_sdp_use_overrideable(True)
