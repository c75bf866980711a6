"""The child process of a supervisor: `python -m compilefarm.worker.child`.

It imports what its tasks need, says that it is ready, does one task and ends. Tasks come on standard input, answers go
out on what was standard output; everything that libraries print goes to standard error. It has no credentials, and no
way to say anything but compilefarm.v1.ChildMessage.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import signal
import sys
import traceback
from typing import BinaryIO

from compilefarm.artifact.environment import describe_environment
from compilefarm.artifact.inductor.build_trials import run_build_trials
from compilefarm.artifact.inductor.programs import not_serializable_error, preload_compiler, preload_loader
from compilefarm.core.errors import FarmError, InvalidRequest
from compilefarm.graph.decode import GraphRejected
from compilefarm.graph.encode import EnvironmentNeeds
from compilefarm.graph.operators import import_operators
from compilefarm.graph.symbols import Inexpressible
from compilefarm.graph.vocabulary import describe_vocabulary
from compilefarm.v1.child_pb2 import (
    BuildTrial,
    ChildBlob,
    ChildFailure,
    ChildMessage,
    ChildProgress,
    ChildReady,
    ChildTask,
    CompileTask,
    Toolchain,
)
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_COMPILE_ERROR,
    FAILURE_KIND_NOT_SERIALIZABLE,
    FAILURE_KIND_OUT_OF_MEMORY,
    FAILURE_KIND_VERIFICATION,
    CompileFailure,
    FailureKind,
    Phase,
)
from compilefarm.worker.compile import compile_task
from compilefarm.worker.decoding import Admitted
from compilefarm.worker.frames import read_frame, write_frame
from compilefarm.worker.limits import is_out_of_memory, limit_memory
from compilefarm.worker.verify import VerificationFailed, verify_task

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_MESSAGE = 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda-device", type=int, default=None, help="number of the GPU to compile for")
    parser.add_argument("--verifier", action="store_true", help="import what a pod imports, and no compiler")
    parser.add_argument("--import", action="append", default=[], dest="modules", help="registers operators")
    parser.add_argument("--allow-triton-kernels", action="store_true", help="run the source of kernels in a request")
    parser.add_argument("--memory-limit", type=int, default=None, metavar="BYTES", help="what a task may take")
    arguments = parser.parse_args()
    _die_with_parent()
    answers = _take_standard_output()
    preload_loader() if arguments.verifier else preload_compiler()
    admitted = Admitted(operators=import_operators(arguments.modules), triton_kernels=arguments.allow_triton_kernels)
    needs = EnvironmentNeeds(
        cpu=True,
        cuda_device=arguments.cuda_device,
        operators=admitted.operators,
        triton_kernels=admitted.triton_kernels,
    )
    ready = ChildReady(
        environment=describe_environment(needs),
        farm_version=importlib.metadata.version("compilefarm"),
        vocabulary=None if arguments.verifier else describe_vocabulary(),
    )
    _say(answers, ChildMessage(ready=ready))
    if arguments.memory_limit is not None:
        limit_memory(arguments.memory_limit)
    task = read_frame(sys.stdin.buffer, ChildTask)
    if task is not None:
        _do(task, answers, admitted=admitted)
    return 0


def _die_with_parent() -> None:
    """A supervisor that is killed cannot kill its children: the kernel does it then."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


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
                _compile(task.compile, answers, admitted=admitted)
            case "verify":
                _say(answers, ChildMessage(verified=verify_task(task.verify, admitted=admitted)))
            case "probe":
                trials = run_build_trials()
                found = [BuildTrial(program_digest=digest, works=works) for digest, works in sorted(trials.items())]
                _say(answers, ChildMessage(toolchain=Toolchain(trials=found)))
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
        _say(answers, ChildMessage(blob=ChildBlob(digest=digest, content=content)))
    _say(answers, ChildMessage(compiled=compiled.result))


def failure_of(error: Exception) -> ChildFailure:
    """What an error of a task is called on the wire."""
    return ChildFailure(
        invalid_request=isinstance(error, InvalidRequest),
        failure=CompileFailure(
            kind=_kind(error),
            message=str(error)[:_LONGEST_MESSAGE],
            error_type=_type_name(error),
        ),
    )


def _kind(error: Exception) -> FailureKind.ValueType:
    if is_out_of_memory(error):
        return FAILURE_KIND_OUT_OF_MEMORY
    if isinstance(error, not_serializable_error() | Inexpressible):
        return FAILURE_KIND_NOT_SERIALIZABLE
    if isinstance(error, VerificationFailed | FarmError):
        return FAILURE_KIND_VERIFICATION
    return FAILURE_KIND_COMPILE_ERROR


def _type_name(error: Exception) -> str:
    kind = error.error_type if isinstance(error, GraphRejected) else type(error)
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


if __name__ == "__main__":
    sys.exit(main())
