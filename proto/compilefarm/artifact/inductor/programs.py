"""Programs: what Inductor makes of a graph, as bytes and as something that can be called."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext, tracing  # torch/_guards.py
from torch._subclasses import FakeTensorMode  # torch/_subclasses/fake_tensor.py
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from compilefarm.artifact.inductor.kernels import FinishedKernel, names_of_kernels, take_kernels
from compilefarm.artifact.inductor.recording import Recording, recorded_with
from compilefarm.artifact.inductor.wrappers import finished_wrapper, moved_wrapper
from compilefarm.graph.targets import cacheable_names

_LOADING = (
    "torch._inductor.standalone_compile",
    "torch._functorch._aot_autograd.aot_autograd_result",
    # Every call looks for settings there (torch/_inductor/output_code.py: CompiledFxGraph.__call__).
    "torch._inductor.debug",
)
# What launches Triton's kernels; a second, most of it for Triton.
_LAUNCHING = ("torch._inductor.runtime.triton_heuristics",)
_COMPILING = (
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    # These three are imported by the first compile with a kernel otherwise: a tenth of a second.
    "sympy.physics.units",
    "sympy.tensor.tensor",
    "torch.utils.cpp_extension",
    *_LOADING,
)
# For logs of a compile that happened elsewhere: nobody who runs the program reads them.
_LOGGED_BY_GRAPH = ("runnable_graph_str", "inductor_post_grad_graph_str")
_LOGGED_BY_ENTRY = ("aot_joint_graph_str", "aot_forward_graph_str", "aot_backward_graph_str")


def preload_loader(*, with_triton: bool) -> None:
    """Imports what loading needs: work that need not wait for an answer.

    Args:
        with_triton: with what launches its kernels.
    """
    for name in (*_LOADING, *(_LAUNCHING if with_triton else ())):
        importlib.import_module(name)


def preload_compiler(*, with_triton: bool) -> None:
    """Imports what compiling needs: seconds of work that need not wait for a job.

    Args:
        with_triton: with what compiles and launches its kernels.
    """
    for name in (*_COMPILING, *(_LAUNCHING if with_triton else ())):
        importlib.import_module(name)


def compile_once(device: torch.device) -> None:
    """Compiles something small: much is read and registered by the first compile of a process.

    That is a sixth of the compile of a small encoder. A product of matrices has no kernel that would have to be built.
    On a GPU this starts the processes that compile kernels.

    Args:
        device: what jobs will be compiled for; patterns of graphs are registered by device
            (torch/_inductor/fx_passes/joint_graph.py: lazy_init).
    """
    graph = torch.fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    product = graph.call_function(torch.matmul, (left, right))
    graph.output((product,))
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    with fake_mode:
        inputs = [torch.empty(8, 8, device=device) for _ in range(2)]
        for node, value in zip((left, right, product), (*inputs, inputs[0] @ inputs[1]), strict=True):
            node.meta["example_value"] = value
    graph_module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        compile_to_program(graph_module, inputs, fake_mode=fake_mode, inductor_options={}, functorch_options={})


def compile_lock() -> contextlib.AbstractContextManager[object]:
    """The lock under which Dynamo compiles; to be held by whoever reads or changes torch's settings.

    Settings are patched for the whole process (torch/utils/_config_module.py: ConfigPatch), so a load beside another
    load, or beside a compile, would work with settings of the other.
    """
    lock: contextlib.AbstractContextManager[object]
    lock = importlib.import_module("torch._dynamo.convert_frame").compile_lock
    return lock


def compile_to_program(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    fake_mode: FakeTensorMode,
    inductor_options: Mapping[str, Any],
    functorch_options: Mapping[str, Any],
    static_inputs: Sequence[int] = (),
) -> Any:
    """Compiles a graph; the result is called with the graph's inputs.

    Args:
        graph_module: the graph, with `meta["example_value"]` on every node: without it the autograd cache declines the
            graph silently and nothing can be saved (torch/_functorch/_aot_autograd/autograd_cache.py).
        inputs: fake inputs in `fake_mode`. Real ones would be made symbolic by standalone_compile.
        fake_mode: the mode the inputs were made in.
        inductor_options: for torch._inductor.config.
        functorch_options: for torch._functorch.config.
        static_inputs: numbers of the inputs that are at the same place in memory at each call.
    """
    # Torch saves graphs that it can tell apart by its own keys. The farm has its own; what they hold may be saved.
    saved = {"unsafe_marked_cacheable_functions": dict.fromkeys(cacheable_names(graph_module), "compilefarm")}
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
        _with_static_inputs(static_inputs),
    ):
        return standalone_compile(
            graph_module,
            list(inputs),
            dynamic_shapes="from_tracing_context",
            options={"config_patches": {**inductor_options, **saved}},
            aot=True,
        )


@contextlib.contextmanager
def _with_static_inputs(numbers: Sequence[int]) -> Iterator[None]:
    """Inside, AOTAutograd takes inputs for static that Dynamo would have marked; a rebuilt graph bears no such marks.

    Stands in for what reads the marks (torch/_functorch/_aot_autograd/frontend_utils.py).
    """
    module: Any = importlib.import_module("torch._functorch.aot_autograd")
    original = module._try_get_metadata_from_dynamo
    module._try_get_metadata_from_dynamo = lambda *_: (None, list(numbers))
    try:
        yield
    finally:
        module._try_get_metadata_from_dynamo = original


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedProgram:
    """A compiled program without what only compiling needed.

    Attributes:
        content: for `deserialize_program`.
        kernels: of Triton; they have to be offered before the content is loaded.
        sources: what Inductor made of the graph on the way, for people: text by path.
    """

    content: bytes
    kernels: list[FinishedKernel]
    sources: Mapping[str, str]


class KernelsLeft(Exception):
    """A program has kernels that the worker does not find, so that an artifact of it would not be finished work."""


def finish_program(program: Any) -> FinishedProgram:
    """What of a compiled program goes into an artifact. It has run, so that its kernels are chosen.

    Raises:
        KernelsLeft: some of them cannot be packed.
    """
    # With torch's table of launched kernels (torch/_dynamo/aot_compile_types.py), which a load would write over that of
    # the pod. It is for kernels that Inductor leaves to Python; here it compiles all.
    entry, *_ = pickle.loads(program.serialize())  # noqa: S301 - pickled by this very process
    sources = {f"{_file_of(name)}.txt": getattr(entry, name) for name in _LOGGED_BY_ENTRY}
    for name in _LOGGED_BY_ENTRY:
        setattr(entry, name, None)
    kernels: list[FinishedKernel] = []
    for folder, part in (("forward", entry.compiled_fw), ("backward", entry.compiled_bw)):
        if part is not None:
            graph = part.result
            sources[f"{folder}/wrapper.py"] = graph.source_code
            sources |= {f"{folder}/{_file_of(name)}.txt": getattr(graph, name) for name in _LOGGED_BY_GRAPH}
            kernels += _finish(graph)
    for kernel in kernels:
        sources |= {f"kernels/{kernel.name}.{kind}": text for kind, text in kernel.sources.items()}
    return FinishedProgram(
        content=pickle.dumps((entry, {}, {})),
        kernels=kernels,
        sources={path: text for path, text in sources.items() if text},
    )


def _file_of(name: str) -> str:
    return name.removesuffix("_str")


def _finish(graph: Any) -> list[FinishedKernel]:
    """Finishes a CompiledFxGraph (torch/_inductor/output_code.py); returns its kernels.

    Raises:
        KernelsLeft: some of them cannot be packed.
    """
    codecache = importlib.import_module("torch._inductor.codecache")
    code_hash = codecache.code_hash
    path = codecache.get_path(graph.cache_key, "py")[2]
    modules = [module for module in codecache.PyCodeCache.modules if module.__file__ == path]
    source, kernels = take_kernels(graph.source_code, modules)
    if left := names_of_kernels(source):
        raise KernelsLeft(f"kernels that were not found in this process would be compiled by pods: {', '.join(left)}")
    # All variants of all kernels, with every step between source and machine code.
    graph._triton_bundle = None
    graph.source_code = finished_wrapper(source)
    # It names the file that the wrapper is written to. A pod's cache may hold the unfinished one under the old name.
    graph.cache_key = code_hash(graph.source_code)
    for name in _LOGGED_BY_GRAPH:
        setattr(graph, name, "")
    # How the graph was compiled. Unpickling the table of decompositions imports it.
    graph.fx_kwargs.pop("get_decomp_fn", None)
    return kernels


def deserialize_program(
    content: bytes,
    *,
    cuda_device: int = 0,
    recording: Mapping[str, object] | None = None,
    on_unrecorded: Callable[[Exception], None] | None = None,
) -> Callable[..., Any]:
    """Loads a program. Unpickles, so the bytes must be trusted by now.

    Args:
        content: the content of a FinishedProgram.
        cuda_device: the GPU that it is to run on, where it runs on one.
        recording: Inductor's settings if the program is to be recorded as CUDA graphs.
        on_unrecorded: told why it cannot be, once, and then it runs without graphs; None: calls end with the error.

    CompiledArtifact.load would also hash torch's whole source tree to compare it with the worker's
    (torch/_inductor/codecache.py: torch_key); the manifest's environment has said that already.
    """
    preload_loader(with_triton=False)
    artifact_type = importlib.import_module("torch._inductor.standalone_compile").AOTCompiledArtifact
    # Of its own: in Dynamo's context the load would add to the guards and strides of the graph being traced.
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    # One thread: with more, Inductor starts a pool of processes to compile Triton kernels, and there is nothing to
    # compile (torch/_inductor/async_compile.py).
    settings = {"triton.cudagraphs": False, **(recording or {}), "compile_threads": 1}
    content = _moved(content, cuda_device) if cuda_device else content
    state = Recording(on_end=on_unrecorded) if recording and on_unrecorded else None
    with (
        compile_lock(),
        _without_the_compiler(state),
        tracing(context),
        torch._inductor.config.patch(settings),
        recorded_with(state) if recording else contextlib.nullcontext(),
    ):
        program: Callable[..., Any] = artifact_type.deserialize(content)
    return state.retrying(program) if state else program


def _moved(content: bytes, cuda_device: int) -> bytes:
    """A program for another GPU than number 0, which workers compile for."""
    entry, *tables = pickle.loads(content)  # noqa: S301 - part of an artifact
    code_hash = importlib.import_module("torch._inductor.codecache").code_hash
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            graph = part.result
            graph.source_code = moved_wrapper(graph.source_code, device=cuda_device)
            graph.cache_key = code_hash(graph.source_code)
            graph.device_idxs = {cuda_device if number == 0 else number for number in graph.device_idxs}
            graph.constants = {
                name: held.to(torch.device("cuda", cuda_device))
                if isinstance(held, torch.Tensor) and held.is_cuda
                else held
                for name, held in (graph.constants or {}).items()
            }
    return pickle.dumps((entry, *tables))


@contextlib.contextmanager
def _without_the_compiler(recording: Recording | None) -> Iterator[None]:
    """Inside, a cached graph becomes callable without importing the compiler: half a second, for logs and counters.

    Stands in for FxGraphCache.cache_hit_post_compile (torch/_inductor/codecache.py) and does the two things of it that
    a program needs: put its kernels into place, and run its wrapper.
    """
    cache = importlib.import_module("torch._inductor.codecache").FxGraphCache
    bundler = importlib.import_module("torch._inductor.triton_bundler").TritonBundler
    original = cache.cache_hit_post_compile

    def cache_hit_post_compile(graph: Any, cache_info: dict[str, Any], constants: Any) -> tuple[Any, dict[str, Any]]:
        if graph._triton_bundle:
            bundler.read_and_emit(graph._triton_bundle)
        if recording is not None:
            recording.writes |= bool(graph.mutated_input_idxs)
        graph.after_deserialization(constants)
        return graph, cache_info

    cache.cache_hit_post_compile = staticmethod(cache_hit_post_compile)
    try:
        yield
    finally:
        cache.cache_hit_post_compile = staticmethod(original)


def not_serializable_error() -> type[Exception]:
    """What a compile raises when torch cannot save its result (torch/_functorch/_aot_autograd/autograd_cache.py)."""
    module = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    error: type[Exception] = module.BypassAOTAutogradCache
    return error
