"""Takes Triton's kernels out of a compiled program: of each, the configuration that tuning chose.

Inductor's wrapper holds the source of each kernel and hands it to AsyncCompile.triton
(torch/_inductor/async_compile.py), which compiles several configurations or finds them in a cache, and benchmarks them
at the first call. A finished wrapper asks for each kernel by digest instead (compilefarm.loader.kernels).
"""

from __future__ import annotations

import ast
import copy
import hashlib
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from compilefarm.builder.wrappers import blank
from compilefarm.core.kernel_choices import CHOICE, write_choice
from compilefarm.loader.kernels import finished_kernel
from compilefarm.torch_internals.autotuners import (
    cache_folder,
    compile_configuration,
    forget_source,
    is_autotuner,
    is_launched_by_inductor,
    without_launches,
)

_COMPILER = "async_compile"
# Wrappers of stored artifacts say it, so that ARTIFACT_FORMAT changes with it.
_IMPORT = f"from {finished_kernel.__module__} import {finished_kernel.__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedKernel:
    """A kernel that can be launched without compiling or choosing.

    Attributes:
        digest: sha256 (hex) of the content; the wrapper asks for it.
        name: Inductor's name for it.
        content: the pickled kernel.
        sources: the steps between source and machine code, and what was chosen ("json"), for people: text by kind.
    """

    digest: str
    name: str
    content: bytes
    sources: Mapping[str, str] = field(default_factory=dict)


# What an autotuner remembers of its own compile: for logs, profiles and further tuning. A pod does nothing with it, and
# it differs between kernels that are the same.
_BOOKKEEPING = {
    "precompile_time_taken_ns": 0,
    "autotune_time_taken_ns": 0,
    "kernel_hash": "",
    "compile_id": None,
    "is_backward": False,
}


def take_kernels(source: str, modules: Sequence[ModuleType]) -> tuple[str, list[FinishedKernel]]:
    """Takes the kernels out of a wrapper that has run.

    Args:
        source: the wrapper.
        modules: what it became when it was loaded here, once for each time.

    Returns:
        The wrapper, which asks for its kernels by digest, with every line where it was; and the kernels. What is no
        kernel of Triton's, such as a choice between several that is made at each call, stays as it is.
    """
    tree = ast.parse(source)
    lines = source.split("\n")
    taken = []
    for statement, name in _kernel_statements(tree):
        autotuner = _find_autotuner(name, modules)
        if autotuner is None:
            continue
        kernel = _finish(name, autotuner)
        taken.append(kernel)
        blank(lines, statement, replacement=f'{name} = finished_kernel("{kernel.digest}")')
    if not taken:
        return source, []
    first = next(number for number, line in enumerate(lines) if "finished_kernel(" in line)
    lines[first] = f"{_IMPORT}; {lines[first]}"
    return _without_idle_compiler("\n".join(lines)), taken


def names_of_kernels(source: str) -> list[str]:
    """The kernels that a wrapper compiles or looks for itself."""
    return [name for _, name in _kernel_statements(ast.parse(source))]


def _kernel_statements(tree: ast.Module) -> Iterator[tuple[ast.Assign, str]]:
    """Statements like `triton_poi_0 = async_compile.triton("triton_poi_0", "...")`, with the name that is bound."""
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=compiler), attr="triton")),
            ) if compiler == _COMPILER:
                yield statement, name


def _without_idle_compiler(source: str) -> str:
    """The wrapper without what makes an AsyncCompile and waits for it, where it has nothing left to compile."""
    tree = ast.parse(source)
    lines = source.split("\n")
    mentions = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == _COMPILER]
    idle = [statement for statement in tree.body if _is_idle(statement)]
    if sum(len([node for node in ast.walk(statement) if node in mentions]) for statement in idle) < len(mentions):
        return source
    for statement in idle:
        blank(lines, statement)
    return "\n".join(lines)


def _is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="AsyncCompile"))):
            return name == _COMPILER
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="wait"))):
            return name == _COMPILER
        case ast.Delete(targets=[ast.Name(id=name)]):
            return name == _COMPILER
    return False


def _find_autotuner(name: str, modules: Sequence[ModuleType]) -> Any:
    """The kernel as it is in this process, rather one that has chosen; None if it is of another kind."""
    found: list[Any] = [getattr(module, name, None) for module in modules]
    found = list(filter(is_autotuner, found))
    return min(found, key=lambda kernel: len(kernel.launchers) or 1_000, default=None)


def _finish(name: str, autotuner: Any) -> FinishedKernel:
    # Where the synthetic inputs did not lead to it, it has not chosen. The first is what Inductor thinks best.
    config = autotuner.launchers[0].config
    found = [result for result in autotuner.compile_results if result.config is config]
    # What coordinate descent found is kept nowhere; Triton has it in its cache.
    winner = found[0] if found else compile_configuration(autotuner, config)
    unpicklable = autotuner.prepare_for_pickle()
    source_path = getattr(autotuner.fn, "file_name", None)
    try:
        finished = copy.copy(autotuner)
        finished.__dict__.update(_BOOKKEEPING)
        autotuner.fn.file_name = ""
        finished.compile_results = [_with_machine_code(winner, function=autotuner.fn)]
        finished.configs = finished.save_cache_hook = finished.coordesc_tuner = finished.autotune_cache_info = None
        # It named a file in a folder of this process.
        finished.filename = None
        finished.inductor_meta = {**autotuner.inductor_meta, "coordinate_descent_tuning": False}
        forget_source(finished)
        content = _pickled(finished)
    finally:
        autotuner.fn.file_name = source_path
        autotuner.restore_after_unpickle(unpicklable)
    digest = hashlib.sha256(content).hexdigest()
    settings = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    choice = write_choice(settings, among=len(autotuner.compile_results) + (not found))
    return FinishedKernel(digest=digest, name=name, content=content, sources={**_steps(winner), CHOICE: choice})


def _with_machine_code(result: Any, *, function: Any) -> Any:
    """A CompileResult that needs no file, and holds machine code and no intermediate representation.

    Args:
        result: of one configuration.
        function: the kernel's JITFunction, ready to be pickled. That of the result may be an earlier copy.
    """
    finished = copy.copy(result)
    if is_launched_by_inductor(result):
        finished.kernel = copy.copy(result.kernel)
        state = finished.kernel.__dict__
        # Found out anew by whoever loads it.
        for name in ("C_impl", "n_regs", "n_spills"):
            state.pop(name, None)
        # Once it is on the GPU, the launcher has let go of it.
        state.update(cubin_raw=_machine_code(result), cubin_path=None, function=None)
        return finished
    # A CompiledKernel of Triton (triton/compiler/compiler.py), which Triton's own launcher launches.
    finished.kernel = object.__new__(type(result.kernel))
    source = copy.copy(result.kernel.src)
    source.fn = function
    finished.kernel.__dict__.update(
        without_launches(result.kernel),
        asm={"cubin": result.kernel.asm["cubin"]},
        metadata_group={},
        src=source,
    )
    return finished


class _EqualPickler(pickle._Pickler):
    """Gives equal bytes for equal kernels, be they compiled here, in another process or found in a cache.

    A pickle refers back to what is the same object, and which of equal texts are one differs between those. So equal
    texts are one here, and tuples are never referred back to. Only the pickler in Python can be told.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._texts: dict[str | bytes, str | bytes] = {}

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) in (str, bytes):
            obj = self._texts.setdefault(obj, obj)
        super().save(obj, save_persistent_id)  # type: ignore[misc]  # typeshed hides it

    def memoize(self, obj: Any) -> None:
        if type(obj) is not tuple:
            super().memoize(obj)  # type: ignore[misc]


def _pickled(kernel: Any) -> bytes:
    file = io.BytesIO()
    _EqualPickler(file).dump(kernel)
    return file.getvalue()


def _machine_code(result: Any) -> bytes:
    return (_compiled_folder(result) / f"{result.kernel.name}.cubin").read_bytes()


def _steps(result: Any) -> dict[str, str]:
    files = (_compiled_folder(result) / f"{result.kernel.name}.{kind}" for kind in ("ttir", "ttgir", "ptx"))
    return {file.suffix.removeprefix("."): file.read_text() for file in files if file.exists()}


def _compiled_folder(result: Any) -> Path:
    """Returns the folder of this process in which Triton keeps what it made of a configuration."""
    return cache_folder(result.kernel.hash, device=result.compile_meta.get("device") or 0)
