"""Kernels of Triton: the worker keeps the one variant that won, and a pod launches it without a choice.

Inductor's wrapper holds the source of each kernel and hands it to AsyncCompile.triton
(torch/_inductor/async_compile.py), which compiles several variants or finds them in a cache, and benchmarks them at the
first call. A finished wrapper asks for each kernel by digest instead, and gets what Inductor keeps of one
(CachingAutotuner, torch/_inductor/runtime/triton_heuristics.py) with its winner alone, and that one's machine code.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import io
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

from compilefarm.artifact.inductor.wrappers import blank

_COMPILER = "async_compile"
_MEASUREMENT = re.compile(r"benchmarking\.\w+\.benchmark_\w+")
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_IMPORT = f"from {__name__} import finished_kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedKernel:
    """A kernel that can be launched without compiling or choosing.

    Attributes:
        digest: sha256 (hex) of the content; the wrapper asks for it.
        name: Inductor's name for it.
        content: the pickled kernel.
        sources: the steps between source and machine code, for people: text by kind ("ttir", "ptx").
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
# A wrapper asks for its kernels while it is loaded. Their bytes are not needed afterwards.
_offered: ContextVar[Mapping[str, bytes]] = ContextVar("kernels", default=MappingProxyType({}))
# For the whole process, as Inductor's own: equal content is the same kernel, whichever artifact brought it. It is kept
# as long as a wrapper that launches it.
_loaded: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()


@contextmanager
def offering_kernels(kernels: Mapping[str, bytes]) -> Iterator[None]:
    """Inside, wrappers that are loaded find these kernels (content by digest)."""
    token = _offered.set(kernels)
    try:
        yield
    finally:
        _offered.reset(token)


def finished_kernel(digest: str, *, device: int = 0) -> Any:
    """The kernel that a wrapper asks for, on a GPU. Unpickles, so the bytes must be trusted by now.

    Raises:
        KeyError: it is not offered, and no wrapper has it.
    """
    kernel = _loaded.get((digest, device))
    if kernel is None:
        kernel = _loaded[digest, device] = _load(_offered.get()[digest], device=device)
    return kernel


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
    kind = importlib.import_module(_HEURISTICS).CachingAutotuner
    found = [kernel for module in modules if isinstance(kernel := getattr(module, name, None), kind)]
    return min(found, key=lambda kernel: len(kernel.launchers) or 1_000, default=None)


def _finish(name: str, autotuner: Any) -> FinishedKernel:
    # Where the synthetic inputs did not lead to it, it has not chosen. The first is what Inductor thinks best.
    config = autotuner.launchers[0].config
    found = (result for result in autotuner.compile_results if result.config is config)
    # What coordinate descent found is kept nowhere; Triton has it in its cache.
    winner = next(found, None) or autotuner._precompile_config(config)
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
        finished.__dict__.pop("_reload_kernel", None)
        content = _pickled(finished)
    finally:
        autotuner.fn.file_name = source_path
        autotuner.restore_after_unpickle(unpicklable)
    digest = hashlib.sha256(content).hexdigest()
    return FinishedKernel(digest=digest, name=name, content=content, sources=_steps(winner))


def _with_machine_code(result: Any, *, function: Any) -> Any:
    """A CompileResult that needs no file, and holds machine code and no intermediate representation.

    Args:
        result: of one variant.
        function: the kernel's JITFunction, ready to be pickled. That of the result may be an earlier copy.
    """
    finished = copy.copy(result)
    if isinstance(result, importlib.import_module(_HEURISTICS).StaticTritonCompileResult):
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
        result.kernel.__dict__,
        asm={"cubin": result.kernel.asm["cubin"]},
        metadata_group={},
        src=source,
        _run=None,
        _module_pid=None,
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
    """Where Triton keeps what it made of a variant, in this process's folder."""
    utils = importlib.import_module("torch._inductor.runtime.runtime_utils")
    key = importlib.import_module(_HEURISTICS).triton_hash_to_path_key(result.kernel.hash)
    return Path(utils.triton_cache_dir(result.compile_meta.get("device") or 0), key)


def _load(content: bytes, *, device: int) -> Any:
    kernel = pickle.loads(content)  # noqa: S301 - part of an artifact
    kernel.restore_after_unpickle(None)
    (winner,) = kernel.compile_results
    kernel.device_props = kernel.device_props._replace(index=device)
    kernel.triton_meta["device"] = winner.compile_meta["device"] = device
    code = getattr(winner.kernel, "cubin_raw", None)
    if code is None:
        kernel._make_launchers()
        return kernel
    with tempfile.NamedTemporaryFile(prefix="compilefarm-", suffix=".cubin") as file:
        file.write(code)
        file.flush()
        winner.kernel.cubin_path = file.name
        kernel._make_launchers()
    return kernel


class KernelWork:
    """What this process has done about kernels since it was made.

    Attributes:
        compiled: kernels of Triton that were compiled, or looked for in Triton's cache.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self._measured_before = _measured()

    @property
    def benchmarks(self) -> int:
        """Variants that were measured, on a GPU or a CPU."""
        return _measured() - self._measured_before


def count_kernel_work(*, with_triton: bool) -> KernelWork:
    """Counts from now on, for as long as this process lives.

    Args:
        with_triton: whether kernels of Triton are counted. Triton takes a second to import, and what computes on a CPU
            alone has none.
    """
    work = KernelWork()
    if not with_triton:
        return work
    triton: Any = importlib.import_module("triton")
    compile_kernel = triton.compile

    def counted_compile(*args: Any, **kwargs: Any) -> Any:
        work.compiled += 1
        return compile_kernel(*args, **kwargs)

    triton.compile = counted_compile
    return work


def _measured() -> int:
    """What torch has counted (torch/_inductor/runtime/benchmarking.py: time_and_count).

    All that measures ends there, tuning kernels as well as choosing among several. `benchmark` counts itself and then
    the one for its device, hence these alone.
    """
    counters = importlib.import_module("torch._dynamo.utils").counters["inductor"]
    return sum(count for name, count in counters.items() if _MEASUREMENT.fullmatch(name))
