"""Dynamo's work on a frame: what it calls to trace one, and what stands in for a trace that was not made.

torch/_dynamo/convert_frame.py calls `compile_frame` within its own bookkeeping: limits of recompiles, numbers of
compiles, the lock, hooks, the entry in the cache. What takes its place is called there, too, so that all of that stays.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch._dynamo import convert_frame as _convert_frame
from torch._dynamo.output_graph import OutputGraph  # torch/_dynamo/output_graph.py
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX  # torch/_dynamo/resume_execution.py
from torch._dynamo.utils import CleanupHook  # torch/_dynamo/utils.py
from torch._guards import TracingContext  # torch/_guards.py

__all__ = [
    "ADDRESS_OF_WRAPPED",
    "NOT_TRACED_FORM",
    "Frame",
    "Trace",
    "backend_of",
    "install_global",
    "installed_rest",
    "intercept_frames",
    "replayed",
    "rest_of",
    "rests_within",
    "traced_of",
    "wrapped_program",
]

Trace = Callable[[], Any]

# Where a wrapped function keeps an object's address (torch/_dynamo/eval_frame.py).
ADDRESS_OF_WRAPPED = "_torchdynamo_wrapper_id"
# And where a function of torch that is not traced keeps its form since it was first called (torch/_compile.py).
NOT_TRACED_FORM = "__dynamo_disable"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that Dynamo is about to trace.

    Attributes:
        code: of the function.
        local_variables, global_variables, builtins: of the frame.
        closure: cells of the function.
        backend: what compiles graphs, as torch.compile wrapped it.
        is_whole: a graph break is an error (fullgraph=True).
        is_plain: neither exported nor traced together with other ranks.
    """

    code: CodeType
    local_variables: dict[str, Any]
    global_variables: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[Any, ...]
    backend: Callable[..., Any]
    is_whole: bool
    is_plain: bool


def intercept_frames(on_frame: Callable[[Frame, Trace], Any]) -> Callable[[], None]:
    """Has `on_frame` called where Dynamo would trace a frame, with the frame and what traces it.

    It returns what tracing returns, or what `replayed` makes.

    Returns:
        What takes it back.
    """
    original, is_registered = _convert_frame.compile_frame, _convert_frame._is_registered_backend
    signature = inspect.signature(original)
    of_thread = threading.local()

    def compile_frame(*arguments: Any, **keywords: Any) -> Any:
        given = signature.bind(*arguments, **keywords).arguments
        of_thread.is_replayed = False
        output = on_frame(_frame_of(given), lambda: original(*arguments, **keywords))
        of_thread.is_replayed = isinstance(output.tracer_output.output_graph, _ReplayedGraph)
        return output

    def is_registered_backend(compiler: Any) -> bool:
        # Where it is, Dynamo lets go of tensors that it has traced. Who asks imports all of torch's backends.
        return not getattr(of_thread, "is_replayed", False) and bool(is_registered(compiler))

    _convert_frame.compile_frame = compile_frame
    _convert_frame._is_registered_backend = is_registered_backend

    def restore() -> None:
        _convert_frame.compile_frame = original
        _convert_frame._is_registered_backend = is_registered

    return restore


def backend_of(frame: Frame) -> Any:
    """The backend that torch.compile was called with, out of its wrappers."""
    backend: Any = frame.backend
    while inner := getattr(backend, "_torchdynamo_orig_backend", None):
        backend = inner
    return backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What Dynamo found for a frame.

    Attributes:
        code: generated.
        output_graph: with guards, sizes, names of globals.
        inlined: code objects that were traced into.
        installed: names that were put among the globals.
        modules: which of these are modules.
    """

    code: CodeType
    output_graph: Any
    inlined: Sequence[CodeType]
    installed: Sequence[str]
    modules: Mapping[str, str]


def traced_of(output: Any, *, on_guards: Callable[[Traced, Any], None]) -> Any:
    """Has `on_guards` called with what was traced and the CheckFunctionManager once Dynamo has built guards."""
    build = output.build_guards

    def build_guards(*arguments: Any, **keywords: Any) -> Any:
        manager = build(*arguments, **keywords)
        graph = output.tracer_output.output_graph
        traced = Traced(
            code=output.bytecode,
            output_graph=graph,
            inlined=tuple(graph.tracing_context.traced_code),
            installed=tuple(graph.installed_globals),
            modules=dict(graph.import_sources),
        )
        on_guards(traced, manager)
        return manager

    output.build_guards = build_guards
    return output


def install_global(scope: dict[str, Any], name: str, value: Any) -> Callable[[], None]:
    """Puts a name among globals; Dynamo calls what is returned when it forgets the code that needs it."""
    hook: Callable[[], None] = CleanupHook.create(scope, name, value)
    return hook


def rest_of(name: str, value: Any) -> tuple[CodeType, dict[str, Any] | None] | None:
    """What Dynamo put among globals for the rest of a function after a graph break: its code, and the globals that it
    runs with where the generated code does not say. None if a name stands for something else."""
    if not name.startswith("__resume_at"):
        return None
    if isinstance(value, CodeType):
        # Until 2.12 the generated code holds the code of a rest with free variables, too, and needs no global.
        return value, None
    if isinstance(value, FunctionType) and value.__closure__:
        # Later, a function that makes it of cells (torch/_dynamo/output_graph.py: install_resume_function_global).
        held = inspect.getclosurevars(value).nonlocals
        return held["code"], held["f_globals"]
    return (value.__code__, value.__globals__) if isinstance(value, FunctionType) else None


def installed_rest(name: str, code: CodeType, scope: dict[str, Any]) -> Any:
    """What Dynamo puts among globals for the rest of a function."""
    install = getattr(OutputGraph, "install_resume_function_global", None)
    if install is None:
        return code if code.co_freevars else FunctionType(code, scope, name)
    installed: dict[str, Any] = {}
    install(SimpleNamespace(install_global_unsafe=installed.__setitem__), name, code, scope)
    return installed[name]


def rests_within(code: CodeType) -> Iterator[CodeType]:
    """The rests of functions that generated code holds itself."""
    yield from (
        each
        for each in code.co_consts
        if isinstance(each, CodeType) and each.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX)
    )


def wrapped_program(program: Callable[..., Any]) -> Callable[..., Any]:
    """A program as Dynamo puts it among the globals: not traced itself."""
    wrapped: Callable[..., Any] = torch._dynamo.disable(program, reason="do not trace Dynamo-compiled graph")
    return wrapped


def unwrapped_program(value: Any) -> Any:
    """The program behind what Dynamo put among the globals."""
    return getattr(value, "_torchdynamo_orig_callable", value)


def replayed(code: CodeType, manager: Any, *, cleanups: Sequence[Callable[[], None]]) -> Any:
    """What stands in for the result of tracing a frame.

    Args:
        code: generated once.
        manager: a CheckFunctionManager, whose guards hold on the frame.
        cleanups: what to call when the code is forgotten.
    """
    graph = _ReplayedGraph(cleanups)
    tracer = SimpleNamespace(
        error_on_graph_break=False,
        is_tracing_resume_prologue=False,
        output_graph=graph,
        output_graph_for_cleanup=None,
        closure=None,
        f_globals={},
        _cleanup_output_graph=graph.clean_up,
    )
    return SimpleNamespace(
        tracer_output=tracer,
        bytecode=code,
        pycode=[],
        last_attempt_start_time=None,
        build_guards=lambda *_, **__: manager,
    )


class _ReplayedGraph:
    """What _compile asks an OutputGraph for once it has its code (torch/_dynamo/convert_frame.py)."""

    export = False
    package = None
    root_tx = None

    def __init__(self, cleanups: Sequence[Callable[[], None]]) -> None:
        self.cleanups = list(cleanups)
        self.guards: list[Any] = []
        self.shape_env = SimpleNamespace(guards=[])
        self.graph = SimpleNamespace(nodes=[])
        self.placeholders: list[Any] = []
        self.non_compliant_ops: set[Any] = set()
        self.compliant_custom_ops: set[Any] = set()
        self.tracing_context = TracingContext(None)
        self.local_scope: dict[str, Any] = {}

    def is_empty_graph(self) -> bool:
        return True

    def has_outputs(self) -> bool:
        return False

    def count_calls(self) -> int:
        return 0

    def get_graph_sizes_structured(self) -> dict[str, Any]:
        return {}

    def get_replayed_side_effect_source_refs(self) -> list[str]:
        return []

    def clean_up(self) -> None:
        for cleanup in reversed(self.cleanups):
            cleanup()
        self.cleanups.clear()


def _frame_of(given: Mapping[str, Any]) -> Frame:
    return Frame(
        code=given["code"],
        local_variables=given["locals"],
        global_variables=given["globals"],
        builtins=given["builtins"],
        closure=given["closure"] or (),
        backend=given["compiler_fn"],
        is_whole=bool(given["one_graph"]),
        is_plain=not given.get("export") and given.get("distributed_state") is None and given.get("package") is None,
    )
