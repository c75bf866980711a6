"""Everything the farm takes from Inductor's inside.

Beside compilefarm.graph.targets this is the only module that touches private names of torch. Each use names the file it
leans on, and tests/artifact/test_private_torch.py has a canary for each that says what broke when a release moves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext, tracing  # torch/_guards.py
from torch._subclasses import FakeTensorMode  # torch/_subclasses/fake_tensor.py
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLibrary:
    """A shared library that Inductor built.

    Attributes:
        source_digest: what was asked for, see `_source_digest`.
        name: Inductor's name for it; it becomes part of a module name in sys.modules.
        path: where it lies.
    """

    source_digest: str
    name: str
    path: str


class LibraryNotPacked(Exception):
    """A program asks for a library that its artifact does not hold."""


def preload() -> None:
    """Imports what compiling and loading need: seconds of work that need not wait for a job or an answer."""
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._inductor.async_compile")
    importlib.import_module("torch._inductor.standalone_compile")
    importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")


def compile_to_program(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    fake_mode: FakeTensorMode,
    inductor_options: Mapping[str, Any],
    functorch_options: Mapping[str, Any],
) -> Any:
    """Compiles a graph; the result is called with the graph's inputs.

    Args:
        graph_module: the graph, with `meta["example_value"]` on every node: without it the autograd cache declines the
            graph silently and nothing can be saved (torch/_functorch/_aot_autograd/autograd_cache.py).
        inputs: fake inputs in `fake_mode`. Real ones would be made symbolic by standalone_compile.
        fake_mode: the mode the inputs were made in.
        inductor_options: for torch._inductor.config.
        functorch_options: for torch._functorch.config.
    """
    standalone_compile = importlib.import_module("torch._inductor.standalone_compile").standalone_compile
    settings = {
        **functorch_options,
        # Say why a graph cannot be saved instead of compiling it for nothing.
        "strict_autograd_cache": True,
        # The backward belongs to the artifact; torch 2.11 lowers it at the first backward() otherwise.
        "force_non_lazy_backward_lowering": True,
    }
    with (
        tracing(TracingContext(fake_mode)),
        torch._functorch.config.patch(settings),  # torch/_functorch/config.py
    ):
        return standalone_compile(
            graph_module,
            list(inputs),
            dynamic_shapes="from_tracing_context",
            options={"config_patches": dict(inductor_options)},
            aot=True,
        )


def serialize_program(program: Any) -> bytes:
    """The bytes of a compiled program, for `deserialize_program`."""
    content: bytes = program.serialize()
    return content


def deserialize_program(content: bytes) -> Callable[..., Any]:
    """Loads a program. Unpickles, so the bytes must be trusted by now.

    CompiledArtifact.load would also hash torch's whole source tree to compare it with the worker's
    (torch/_inductor/codecache.py: torch_key); the manifest's environment has said that already.
    """
    artifact_type = importlib.import_module("torch._inductor.standalone_compile").AOTCompiledArtifact
    # Of its own: in Dynamo's context the load would add to the guards and strides of the graph being traced.
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    # One thread: with more, Inductor starts a pool of processes to compile Triton kernels, and there is nothing to
    # compile (torch/_inductor/async_compile.py).
    settings = {"triton.cudagraphs": False, "compile_threads": 1}
    with tracing(context), torch._inductor.config.patch(settings):
        program: Callable[..., Any] = artifact_type.deserialize(content)
        return program


# Inductor builds C++ through one function, CppCodeCache.load_async (torch/_inductor/codecache.py). The worker listens
# there to learn which library answers which source; the loader answers there from the artifact. A thread that does
# neither is passed on to Inductor, so that local compiles go on beside a load.
_Answer = Callable[[Any, str, Callable[[], Any]], Callable[[], Any]]
_answer: ContextVar[_Answer | None] = ContextVar("compilefarm_libraries", default=None)


@contextlib.contextmanager
def recording_libraries() -> Iterator[list[BuiltLibrary]]:
    """Collects every library that Inductor builds and loads inside, in the order of first use."""
    built: dict[str, BuiltLibrary] = {}

    def record(_: Any, source_digest: str, build: Callable[[], Any]) -> Callable[[], Any]:
        load = build()

        def load_and_record() -> Any:
            library = load()
            path = getattr(library, "__file__", None) or library._name  # a module or a ctypes.CDLL
            built[source_digest] = BuiltLibrary(source_digest=source_digest, name=library.key, path=path)
            recorded[:] = built.values()
            return library

        return load_and_record

    recorded: list[BuiltLibrary] = []
    with _answering(record):
        yield recorded


@contextlib.contextmanager
def using_libraries(libraries: Mapping[str, BuiltLibrary]) -> Iterator[None]:
    """Inside, libraries come from `libraries` (by source digest), and nothing is built.

    Raises:
        LibraryNotPacked: a program asks for one that is not among them.
    """

    def answer(cache: Any, source_digest: str, _: Callable[[], Any]) -> Callable[[], Any]:
        library = libraries.get(source_digest)
        if library is None:
            raise LibraryNotPacked(f"the artifact holds no library for source {source_digest}")
        # At once: the files may be gone by the time of the first call.
        loaded = cache._load_library(library.path, library.name)
        return lambda: loaded

    with _answering(answer):
        yield


@contextlib.contextmanager
def _answering(answer: _Answer) -> Iterator[None]:
    _listen_to_builds()
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def _listen_to_builds() -> None:
    code_cache: Any = importlib.import_module("torch._inductor.codecache").CppCodeCache
    original = code_cache.load_async.__func__
    if getattr(original, "compilefarm", False):
        return

    def load_async(cls: Any, main_code: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        def build() -> Callable[[], Any]:
            load: Callable[[], Any] = original(cls, main_code, *args, **kwargs)
            return load

        answer = _answer.get()
        if answer is None:
            return build()
        return answer(cls, _source_digest(cls.__name__, main_code, args, kwargs), build)

    load_async.compilefarm = True  # type: ignore[attr-defined]
    code_cache.load_async = classmethod(load_async)


def _source_digest(kind: str, main_code: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    # How the build is scheduled says nothing about what is built.
    flags = {name: value for name, value in kwargs.items() if name != "submit_fn"}
    digest = hashlib.sha256()
    for part in (kind, main_code, repr(args), repr(sorted(flags.items()))):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


# Inductor finds out which vector instructions work by building and running programs, each in a Python of its own that
# imports torch (torch/_inductor/cpu_vec_isa.py: VecISA.check_build): 20 to 30 seconds in every process that compiles.
def run_build_trials() -> dict[str, bool]:
    """Has Inductor try the C++ compiler, and returns what came of each trial, by digest of program and flags."""
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    original = module.VecISA.check_build
    trials: dict[str, bool] = {}

    def check_build(self: Any, code: str) -> bool:
        works: bool = original(self, code)
        trials[_trial_digest(self, code)] = works
        return works

    module.VecISA.check_build = check_build
    try:
        module.valid_vec_isa_list()
    finally:
        module.VecISA.check_build = original
    return trials


def replay_build_trials(trials: Mapping[str, bool]) -> None:
    """For the rest of this process, answers trials of the C++ compiler from earlier ones; unknown ones are run."""
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    original = module.VecISA.check_build

    def check_build(self: Any, code: str) -> bool:
        known = trials.get(_trial_digest(self, code))
        works: bool = original(self, code) if known is None else known
        return works

    module.VecISA.check_build = check_build


def _trial_digest(isa: Any, code: str) -> str:
    return hashlib.sha256(f"{isa._arch_flags}\n{code}".encode()).hexdigest()


def not_serializable_error() -> type[Exception]:
    """What a compile raises when torch cannot save its result (torch/_functorch/_aot_autograd/autograd_cache.py)."""
    module = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    error: type[Exception] = module.BypassAOTAutogradCache
    return error
