"""Loads the program of an artifact: makes a callable of its bytes."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.loader.preparation import PreparedProgram
from compilefarm.loader.recording import Recording, recorded_with
from compilefarm.loader.wrappers import joined_wrapper, moved_wrapper
from compilefarm.torch_internals.autotuners import import_launcher
from compilefarm.torch_internals.compiled_graphs import put_kernels_into_place, replace_wrapper
from compilefarm.torch_internals.compiling import compile_lock, tracing_with
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.freezing import preparation_of
from compilefarm.torch_internals.loading import (
    call_directly,
    finishing_with,
    import_loader,
    make_callable,
    spare_saved_tensors,
    trace_sizes,
)
from compilefarm.torch_internals.settings import INDUCTOR
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv


def preload_loader(*, with_triton: bool) -> None:
    """Imports what loading needs: work that need not wait for an answer.

    Args:
        with_triton: with what launches its kernels.
    """
    import_loader()
    if with_triton:
        import_launcher()


def deserialize_program(
    content: bytes,
    *,
    cuda_device: int = 0,
    process_groups: Sequence[str] = (),
    recording: Mapping[str, object] | None = None,
    on_unrecorded: Callable[[Exception], None] | None = None,
) -> Callable[..., Any]:
    """Loads a program. Unpickles, so the bytes must be trusted by now.

    Args:
        content: a finished program, as compilefarm.builder.programs makes it.
        cuda_device: the GPU that it is to run on, where it runs on one.
        process_groups: what this process calls each group that it communicates in.
        recording: Inductor's settings if the program is to be recorded as CUDA graphs.
        on_unrecorded: told why it cannot be, once, and then it runs without graphs; None: calls end with the error.

    CompiledArtifact.load would also hash torch's whole source tree to compare it with the worker's
    (torch/_inductor/codecache.py: torch_key); the manifest's environment has said that already. What it calls then
    (torch/_functorch/_aot_autograd/aot_autograd_result.py: deserialize_bundled_cache_entry) copies the program to save
    it again, and leaves four functions around it that every call goes through.
    """
    preload_loader(with_triton=False)
    # Of its own: in Dynamo's context the load would add to the guards and strides of the graph being traced.
    context = tracing_with(FakeTensorMode(shape_env=ShapeEnv()))
    # One thread: with more, Inductor starts a pool of processes to compile Triton kernels, and there is nothing to
    # compile (torch/_inductor/async_compile.py).
    settings = {"triton.cudagraphs": False, **(recording or {}), "compile_threads": 1}
    state = Recording(on_end=on_unrecorded) if recording and on_unrecorded else None
    with (
        compile_lock(),
        finishing_with(_finisher(state)),
        context,
        INDUCTOR.patch(settings),
        recorded_with(state) if recording else contextlib.nullcontext(),
    ):
        entry, *_ = pickle.loads(content)  # noqa: S301 - part of an artifact
        if cuda_device:
            _move(entry, cuda_device)
        if process_groups:
            _join(entry, process_groups)
        # The manifest has those that matter, in terms of the graph's symbols.
        entry.guards_expr = None
        spare_saved_tensors(entry)
        trace_sizes(entry)
        program = make_callable(entry)
    return state.retrying(program) if state else _unpacked(program)


def _unpacked(program: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    return lambda *inputs: program([*inputs])


def _move(entry: Any, cuda_device: int) -> None:
    """Has a program run on another GPU than number 0, which workers compile for."""
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            graph = part.result
            replace_wrapper(graph, moved_wrapper(graph.source_code, device=cuda_device))
            graph.device_idxs = {cuda_device if number == 0 else number for number in graph.device_idxs}
            graph.constants = {
                name: held.to(torch.device("cuda", cuda_device))
                if isinstance(held, torch.Tensor) and held.is_cuda
                else held
                for name, held in (graph.constants or {}).items()
            }


def _join(entry: Any, process_groups: Sequence[str]) -> None:
    """Has a program communicate in groups of this process."""
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            replace_wrapper(part.result, joined_wrapper(part.result.source_code, process_groups=process_groups))


def _finisher(recording: Recording | None) -> Callable[[Any, Any], None]:
    """Makes a loaded graph callable: puts its kernels into place, and runs its wrapper."""

    def finish(graph: Any, constants: Any) -> None:
        put_kernels_into_place(graph)
        if recording is not None:
            recording.writes |= bool(graph.mutated_input_idxs)
        graph.after_deserialization(constants)
        preparation = preparation_of(graph)
        if preparation is not None:
            graph.current_callable = PreparedProgram(graph.current_callable, preparation)
        call_directly(graph)

    return finish
