"""The child processes of a supervisor: `python -m compilefarm.worker.child`.

It imports what tasks need and waits to be forked. A child says that it is ready, does one task and ends. Tasks come on
standard input, answers go out on what was standard output; everything that libraries print goes to standard error. A
child has no credentials, and no way to say anything but compilefarm.v1.ChildMessage.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.metadata
import os
import sys
import threading
import traceback
from collections.abc import Collection
from typing import BinaryIO

# Nothing that is imported is garbage, and to look for some takes a fifth of the time. Once all of it is there,
# wait_to_be_forked looks, and has children look for their own.
gc.disable()

import torch

from compilefarm.builder import kernel_compiles
from compilefarm.builder.build_trials import run_build_trials
from compilefarm.builder.generated_sources import imports_written, paths_written, words_of_generators
from compilefarm.builder.headers import precompile_headers
from compilefarm.builder.preloading import compile_once, preload_compiler
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.starts import StartClock, process_began_seconds, to_wire
from compilefarm.graph.admission import Admitted, with_libraries_of
from compilefarm.graph.contractions import CONTRACTION_LIBRARY
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.libraries import installed_libraries
from compilefarm.graph.operators import describable, import_operators
from compilefarm.graph.replacements import find_replacement
from compilefarm.graph.targets import target_names
from compilefarm.graph.vocabulary import describe_vocabulary
from compilefarm.loader.environment import describe_environment
from compilefarm.loader.programs import preload_loader
from compilefarm.torch_internals.checked_kernels import check_kernels
from compilefarm.torch_internals.cpp_builds import build_command, decide_headers_folder_again
from compilefarm.torch_internals.vmap import bound_places
from compilefarm.v1.child_pb2 import (
    BuildTrial,
    ChildMessage,
    ChildProgress,
    ChildReady,
    ChildTask,
    CompileTask,
    Toolchain,
)
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Phase
from compilefarm.v1.vocabulary_pb2 import Vocabulary
from compilefarm.worker import limits
from compilefarm.worker.compile import INPUT_SEED, compile_task
from compilefarm.worker.failures import failure_of
from compilefarm.worker.forks import end_child, wait_to_be_forked
from compilefarm.worker.frames import write_frame
from compilefarm.worker.inputs import draw_noise
from compilefarm.worker.pieces import pieces_of
from compilefarm.worker.tasks import receive_task
from compilefarm.worker.verify import verify_task, warm_up_comparison


def main() -> int:
    clock = StartClock(began_seconds=process_began_seconds())
    clock.end("torch")
    arguments = _parse_arguments()
    on_gpu, verifier = arguments.cuda_device is not None, arguments.verifier
    device = torch.device("cuda", arguments.cuda_device) if on_gpu else torch.device("cpu")
    vocabulary = _preload(verifier=verifier, device=device, clock=clock)
    libraries = installed_libraries(arguments.libraries)
    command = "" if verifier else build_command()
    wait_to_be_forked()
    clock.go_on()
    answers = _take_standard_output()
    if not verifier:
        decide_headers_folder_again()
    if on_gpu:
        _start_gpu(device, verifier=verifier)
        clock.end("cuda")
    # Whatever they do when they are imported, they do it in here.
    admitted = Admitted(
        operators=_import_operators(arguments.modules),
        triton_kernels=arguments.allow_triton_kernels,
        libraries=frozenset(library.name for library in libraries),
    )
    environment = _describe_environment(arguments.cuda_device, admitted)
    environment.operator_libraries.extend(libraries)
    clock.end("operators")
    limits.impose(arguments)
    if on_gpu:
        _practise(device, verifier=verifier)
        clock.end("practice")
    ready = ChildReady(
        environment=environment,
        farm_version=importlib.metadata.version("compilefarm"),
        vocabulary=vocabulary,
        build_command=command,
        start=to_wire(clock.phases),
    )
    _say(answers, ChildMessage(ready=ready))
    task = receive_task(sys.stdin.buffer, answers)
    if task is not None:
        _do(task, answers, admitted=admitted)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda-device", type=int, default=None, help="number of the GPU to compile for")
    parser.add_argument("--verifier", action="store_true", help="import what a pod imports, and no compiler")
    parser.add_argument("--import", action="append", default=[], dest="modules", help="registers operators")
    parser.add_argument("--allow-triton-kernels", action="store_true", help="run the source of kernels in a request")
    parser.add_argument("--library", action="append", default=[], dest="libraries", help="imported if a job needs it")
    limits.add_arguments(parser)
    return parser.parse_args()


def _describe_environment(cuda_device: int | None, admitted: Admitted) -> Environment:
    needs = EnvironmentNeeds(
        cpu=True,
        cuda_device=cuda_device,
        operators=describable(admitted.operators),
        triton_kernels=admitted.triton_kernels,
        libraries=frozenset({CONTRACTION_LIBRARY}),
    )
    return describe_environment(needs)


def _import_operators(modules: Collection[str]) -> frozenset[str]:
    imported = import_operators(modules)
    replacement = find_replacement() if modules else None
    if replacement is not None:
        raise ImportError(
            f"{', '.join(modules)}: they put something of their own in the place of {replacement}, for pods, too, that"
            " have not imported them; import them in pods alone"
        )
    return imported


def _preload(*, verifier: bool, device: torch.device, clock: StartClock) -> Vocabulary | None:
    """Does what need not be done in each child, and nothing that would be of no use after a fork: CUDA is not started,
    and no thread is.

    Returns:
        What children understand of requests; None for those that verify, which import no more than a pod.
    """
    vocabulary = None
    check_kernels()
    bound_places()
    with contextlib.suppress(ImportError):
        # Inductor shows bars if it can. The first of them starts a thread, and makes a lock in memory that all children
        # would share: one that is killed while it holds it would stop the others.
        bars = importlib.import_module("tqdm").tqdm
        bars.monitor_interval = 0
        bars.set_lock(threading.RLock())
    with_triton = device.type == "cuda"
    # Modules ask whether there is a GPU when they are imported, which starts CUDA where NVML is missing.
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: with_triton
    if verifier:
        preload_loader(with_triton=with_triton)
        # Tables that decoding looks into.
        target_names()
    else:
        preload_compiler(with_triton=with_triton)
        if with_triton:
            kernel_compiles.preload()
        # By now: modules of `serve --import` do not add to torch's own namespaces, which no environment would say.
        vocabulary = describe_vocabulary()
        # What generated sources are held against: a second of reading.
        for read in (words_of_generators, imports_written, paths_written):
            read()
    torch.cuda.is_available = is_available
    clock.end("inductor")
    if not (verifier or with_triton):
        compile_once(device)
        clock.end("practice")
    return vocabulary


def _start_gpu(device: torch.device, *, verifier: bool) -> None:
    """Makes the context of a GPU, and of its library for matrix products: a second that no job has to wait for.

    It holds about half a gigabyte of the GPU's memory from then on.
    """
    x = torch.ones(8, 8, device=device)
    torch.cuda.synchronize((x @ x).device)
    if not verifier:
        kernel_compiles.prepare()


def _practise(device: torch.device, *, verifier: bool) -> None:
    """Does once on a GPU what a task does there, under the limits, which the processes that it starts have as well."""
    if verifier:
        warm_up_comparison(device)
        return
    kernel_compiles.start()
    compile_once(device)
    draw_noise(seed=INPUT_SEED)


def _take_standard_output() -> BinaryIO:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _say(answers: BinaryIO, message: ChildMessage) -> None:
    write_frame(answers, message)


def _do(task: ChildTask, answers: BinaryIO, *, admitted: Admitted) -> None:
    try:
        match task.WhichOneof("task"):
            case "compile":
                admitted = with_libraries_of(task.compile.job, admitted=admitted)
                _compile(task.compile, answers, admitted=admitted)
            case "verify":
                # Before anything of the job is in force: a library decides things when it is imported.
                admitted = with_libraries_of(task.verify.job, admitted=admitted)
                _say(answers, ChildMessage(verified=verify_task(task.verify, admitted=admitted)))
            case "probe":
                trials = run_build_trials()
                found = [BuildTrial(program_digest=digest, works=works) for digest, works in sorted(trials.items())]
                headers = precompile_headers() if any(trials.values()) else []
                _say(answers, ChildMessage(toolchain=Toolchain(trials=found, headers=headers)))
            case None:
                raise InvalidRequest("the task is empty")
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the result of the task
        traceback.print_exc()
        _say(answers, ChildMessage(failed=failure_of(error)))


def _compile(task: CompileTask, answers: BinaryIO, *, admitted: Admitted) -> None:
    def on_phase(phase: Phase.ValueType) -> None:
        _say(answers, ChildMessage(progress=ChildProgress(phase=phase)))

    compiled = compile_task(task, admitted=admitted, on_phase=on_phase)
    for digest, content in compiled.blobs.items():
        for piece in pieces_of(digest, content):
            _say(answers, ChildMessage(blob=piece))
    _say(answers, ChildMessage(compiled=compiled.result))


if __name__ == "__main__":
    end_child(main())
