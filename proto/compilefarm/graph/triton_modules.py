"""Kernels that users write in Triton, rebuilt from data. Their source is run: only where an operator allows it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.decode import GraphRejected
from compilefarm.graph.launches import read_constant, read_constants
from compilefarm.graph.texts import is_name
from compilefarm.graph.triton_kernels import is_module_of_triton
from compilefarm.v1.graph_pb2 import TritonConfiguration, TritonFunction, TritonGlobal, TritonKernel, TritonTuning

_MAX_KERNELS = 1_000
_MAX_SOURCE_CHARACTERS = 1_000_000


def build_kernels(kernels: Sequence[TritonKernel], *, folder: Path) -> list[Any]:
    """What @triton.jit and @triton.autotune made of the functions, in the order of the kernels. Runs their source.

    Args:
        kernels: of a request.
        folder: for files of source; Triton and Inductor read them as long as this process compiles.

    Raises:
        InvalidRequest: a kernel is malformed.
        GraphRejected: Python or Triton refuses the source.
    """
    if len(kernels) > _MAX_KERNELS:
        raise InvalidRequest(f"the graph has {len(kernels)} kernels; at most {_MAX_KERNELS} are taken")
    if sum(len(function.source) for kernel in kernels for function in kernel.functions) > _MAX_SOURCE_CHARACTERS:
        raise InvalidRequest(f"the source of the kernels has more than {_MAX_SOURCE_CHARACTERS} characters")
    return [_build(kernel, number=number, folder=folder) for number, kernel in enumerate(kernels)]


def _build(kernel: TritonKernel, *, number: int, folder: Path) -> Any:
    where = f"kernel {number}"
    try:
        _check_names(kernel)
        text = "\n\n\n".join(map(_checked_source, kernel.functions)) + "\n"
        meanings = {given.name: _meaning(given) for given in kernel.globals}
        path = folder / f"kernel_{number}.py"
        path.write_text(text)
        return _loaded(kernel, path=path, meanings=meanings)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except Exception as error:
        # Whatever the source does when it is run, and whatever Triton says of it.
        raise GraphRejected.because(error, where=where) from error


def _check_names(kernel: TritonKernel) -> None:
    if not kernel.functions or kernel.functions[0].runs_in_python:
        raise InvalidRequest("it has no function that is compiled")
    for names in ([function.name for function in kernel.functions[1:]], [given.name for given in kernel.globals]):
        _check_sorted(names)
    names = [*(function.name for function in kernel.functions), *(given.name for given in kernel.globals)]
    if len(set(names)) < len(names) or not all(map(_is_name, names)):
        raise InvalidRequest("a name that it defines is none, or is there twice")


def _check_sorted(names: Iterable[str]) -> None:
    if any(first >= second for first, second in pairwise(names)):
        raise InvalidRequest("what it defines is not sorted by name")


def _is_name(text: str) -> bool:
    is_special = text.startswith("__") and text.endswith("__")
    return is_name(text) and not is_special


def _checked_source(function: TritonFunction) -> str:
    match ast.parse(function.source).body:
        case [ast.FunctionDef(name=function.name, decorator_list=[])]:
            return function.source
    raise InvalidRequest(f"the source of {function.name} is not the definition of that function")


def _meaning(given: TritonGlobal) -> Any:
    match given.WhichOneof("kind"):
        case "constant":
            return read_constant(given.constant)
        case "module":
            return _module(given.module)
        case "member":
            module, _, member = given.member.partition(":")
            if not member.isidentifier() or member.startswith("_"):
                raise InvalidRequest(f"{given.name} is no member of a module")
            return getattr(_module(module), member)
    raise InvalidRequest(f"{given.name} is of no kind, or of one that is not known")


def _module(name: str) -> ModuleType:
    if not is_module_of_triton(name) or not all(map(_is_name, name.split("."))):
        raise InvalidRequest(f"it refers to the module {name[:120]!r}, which is none of Triton's")
    return importlib.import_module(name)


def _loaded(kernel: TritonKernel, *, path: Path, meanings: dict[str, Any]) -> Any:
    triton: Any = importlib.import_module("triton")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    defined = vars(module)
    defined.update(meanings)
    spec.loader.exec_module(module)
    for function in kernel.functions:
        defined[function.name] = _compiled(function, defined[function.name], triton=triton)
    built = defined[kernel.functions[0].name]
    # Triton follows all references now rather than when it compiles.
    hash(built)
    return _tuned(kernel.tuning, built, triton=triton) if kernel.HasField("tuning") else built


def _compiled(function: TritonFunction, defined: Any, *, triton: Any) -> Any:
    if function.runs_in_python:
        return triton.constexpr_function(defined)
    return triton.jit(
        defined,
        do_not_specialize=list(function.unspecialized),
        do_not_specialize_on_alignment=list(function.unaligned),
        noinline=function.noinline or None,
    )


def _tuned(tuning: TritonTuning, kernel: Any, *, triton: Any) -> Any:
    if not tuning.configurations:
        raise InvalidRequest("its tuning has no configurations")
    named = {*tuning.key, *tuning.reset_to_zero, *tuning.restore_value}
    if not named <= set(kernel.arg_names):
        raise InvalidRequest("its tuning names what is no parameter")
    return triton.autotune(
        [_configuration(given, triton=triton) for given in tuning.configurations],
        key=list(tuning.key),
        reset_to_zero=list(tuning.reset_to_zero),
        restore_value=list(tuning.restore_value),
    )(kernel)


def _configuration(given: TritonConfiguration, *, triton: Any) -> Any:
    return triton.Config(
        read_constants(given.arguments),
        num_warps=given.warps,
        num_stages=given.stages,
        num_ctas=given.blocks,
        maxnreg=given.registers if given.HasField("registers") else None,
    )
