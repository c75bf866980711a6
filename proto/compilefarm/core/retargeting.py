"""Makes requests for another environment out of recorded ones: another torch, another GPU, another mode.

A request has the environment and the settings of the torch that made it. Settings are sent where they
differ from torch's defaults, and these differ between releases, as does what a mode stands for; so they are worked out
again from how torch.compile was called. Graph, inputs and switches of the process stay. Whether the Dynamo of the other
torch captures the same graph from the model cannot be known here; where it does not, its pods ask for other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compilefarm.core.compiler_settings import (
    CUDA_GRAPHS,
    asks_for_cuda_graphs,
    find_obstacle_to_freezing,
    is_of_cuda_graphs,
)
from compilefarm.core.environments import KERNELS_REFUSED, cpu_differences, describe, differences, narrowed
from compilefarm.core.requests import Request
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Call, Graph, NamedValue, TargetKind, Value
from compilefarm.v1.job_pb2 import Job, Options
from compilefarm.v1.request_file_pb2 import CompileArguments
from compilefarm.v1.vocabulary_pb2 import Mode, Vocabulary

_OPERATORS = (TargetKind.TARGET_KIND_OPERATOR_OVERLOAD, TargetKind.TARGET_KIND_OPERATOR_PACKET)


# Why a request cannot be made for another environment or mode, each with a sentence for people.
REASONS: Mapping[str, str] = {
    "cuda_graphs": "The mode asks for CUDA graphs, and the request was recorded without them.",
    "freezing": "The request was recorded with the setting `freezing`, and the mode tunes or records kernels.",
    "no_gpu": "The graph computes on a GPU, and the workers of the environment have none.",
    "no_worker": "No worker of the farm can compile for the environment.",
    "settings_from_variables": "Compiler settings were taken from variables such as TORCHINDUCTOR_MAX_AUTOTUNE.",
    "triton_kernels": "The graph has Triton kernels of the user, and the workers do not accept these.",
    "unknown_call": "The recording does not say how torch.compile was called.",
    "unknown_mode": "The torch of the environment has no such mode.",
    "unknown_operator": "The torch of the environment, or its libraries, lack an operator that the graph calls.",
    "unknown_option": "The torch of the environment lacks a setting that the request sets.",
}


class CannotRetarget(Exception):
    """A request cannot be made for another environment; the message says what is in the way.

    Attributes:
        reason: one of REASONS.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The environment that requests are made for.

    Attributes:
        name: what the operator of the farm calls it.
        environment: of its workers.
        vocabulary: of their torch.
    """

    name: str
    environment: Environment
    vocabulary: Vocabulary


def retarget(request: Request, *, target: Target, mode: str | None = None) -> Job:
    """Returns the job that a pod of another environment would ask for, where the recorded pod asked for `request`.

    A request that fits the environment already, and whose mode stays, is left as it is. The processor stays that of the
    recording as long as artifacts of the workers run on it; else it becomes theirs.

    Args:
        request: the recorded request.
        target: the other environment.
        mode: mode= of torch.compile; None: as recorded.

    Raises:
        CannotRetarget: the request cannot be made for that environment.
    """
    job = Job()
    job.CopyFrom(request.job)
    fits = _fits(job.environment, target=target)
    if fits and mode is None:
        return job
    if not fits:
        job.environment.CopyFrom(_environment(request.job.environment, target=target))
    _check_targets(job, target=target)
    options = _options(request, target=target, mode=mode)
    _check_static_inputs(request.job, options)
    _check_frozen_inputs(request.job, options)
    job.options.CopyFrom(options)
    for given in job.inputs:
        given.is_static &= asks_for_cuda_graphs(options)
    return job


def _check_static_inputs(job: Job, options: Options) -> None:
    if asks_for_cuda_graphs(options) and not asks_for_cuda_graphs(job.options):
        raise CannotRetarget(
            "cuda_graphs",
            "CUDA graphs are asked for, and the request does not say which inputs stay where they are in memory, since"
            " it was recorded without: record it with such a mode",
        )


def _check_frozen_inputs(job: Job, options: Options) -> None:
    obstacle = find_obstacle_to_freezing(options)
    if obstacle is not None and any(given.is_frozen for given in job.inputs):
        raise CannotRetarget(
            "freezing", f"the request is one with the setting freezing, and {obstacle} is asked for: record it without"
        )


def _fits(wanted: Environment, *, target: Target) -> bool:
    # A request that was traced without a GPU has no facts of one, which would equal those of none.
    has_device = target.environment.HasField("cuda") or not wanted.HasField("cuda")
    return has_device and not differences(wanted=wanted, offered=target.environment)


def _environment(recorded: Environment, *, target: Target) -> Environment:
    environment = narrowed(target.environment, wanted=recorded)
    if recorded.HasField("cuda") and not environment.HasField("cuda"):
        raise CannotRetarget("no_gpu", f"the graph computes on a GPU, and workers of {target.name} have none")
    if recorded.triton_kernels and not environment.triton_kernels:
        raise CannotRetarget(
            "triton_kernels", f"the graph launches Triton kernels of the user's own: {KERNELS_REFUSED}"
        )
    missing = {operator.name for operator in recorded.operators} - {operator.name for operator in environment.operators}
    if missing:
        raise CannotRetarget(
            "unknown_operator",
            f"workers of {target.name} have no operator {min(missing)} (serve --import the module that registers it)",
        )
    for part in ("cpu", "cuda"):
        if not recorded.HasField(part):
            environment.ClearField(part)
    if recorded.HasField("cpu") and not cpu_differences(wanted=recorded.cpu, offered=target.environment.cpu):
        environment.cpu.CopyFrom(recorded.cpu)
    return environment


def _check_targets(job: Job, *, target: Target) -> None:
    known = {targets.kind: frozenset(targets.names) for targets in target.vocabulary.targets}
    of_libraries = {operator.name.partition(".")[0] for operator in job.environment.operators}
    for call in _calls(job.graph):
        if call.target in known.get(call.kind, ()) or call.target.partition(".")[0] in of_libraries:
            continue
        what = "operator" if call.kind in _OPERATORS else "function"
        raise CannotRetarget("unknown_operator", f"torch {target.environment.torch} has no {what} {call.target[:120]}")


def _calls(graph: Graph) -> Iterator[Call]:
    yield from (node.call for node in graph.nodes if node.HasField("call"))
    for subgraph in graph.subgraphs:
        yield from _calls(subgraph)


def _options(request: Request, *, target: Target, mode: str | None) -> Options:
    arguments = request.arguments
    if arguments is None:
        raise CannotRetarget("unknown_call", "the request does not say how torch.compile was called: record it again")
    if arguments.settings_from_variables:
        raise CannotRetarget(
            "settings_from_variables",
            "it was recorded with variables such as TORCHINDUCTOR_MAX_AUTOTUNE set, and what they mean to another torch"
            " or mode is not known: record it with options= instead",
        )
    asked = _asked(arguments, target=target, mode=arguments.mode if mode is None else mode, job=request.job)
    by_call = {*arguments.mode_settings, *(option.name for option in arguments.options)}
    by_process = {
        setting.name: setting.value for setting in request.job.options.inductor if setting.name not in by_call
    }
    functorch = {setting.name: setting.value for setting in request.job.options.functorch}
    return Options(
        inductor=_deviations(by_process | asked, defaults=target.vocabulary.inductor, target=target),
        functorch=_deviations(functorch, defaults=target.vocabulary.functorch, target=target),
    )


def _asked(arguments: CompileArguments, *, target: Target, mode: str, job: Job) -> dict[str, Value]:
    stands_for = _get_mode(mode, target=target)
    asked = {option.name: option.value for option in (*stands_for.options, *arguments.options)}
    if stands_for.cuda_graphs:
        # Workers before this release leave it out of what a mode stands for.
        asked.setdefault(CUDA_GRAPHS, Value(boolean=True))
    return asked if job.environment.HasField("cuda") else {k: v for k, v in asked.items() if not is_of_cuda_graphs(k)}


def _get_mode(name: str, *, target: Target) -> Mode:
    if name in ("", "default"):
        return Mode()
    for mode in target.vocabulary.modes:
        if mode.name == name:
            return mode
    known = ", ".join(["default", *(mode.name for mode in target.vocabulary.modes)])
    raise CannotRetarget("unknown_mode", f"torch {target.environment.torch} has no mode {name!r}; known are {known}")


def _deviations(wanted: Mapping[str, Value], *, defaults: Iterable[NamedValue], target: Target) -> Sequence[NamedValue]:
    known = {default.name: default for default in defaults}
    found = []
    for name in sorted(wanted):
        if name not in known:
            raise CannotRetarget("unknown_option", f"torch {target.environment.torch} has no setting {name[:80]!r}")
        if not known[name].HasField("value") or known[name].value != wanted[name]:
            found.append(NamedValue(name=name, value=wanted[name]))
    return found


def find_target(environment: Environment, targets: Iterable[Target]) -> Target:
    """The first of some environments whose artifacts run in one.

    Raises:
        CannotRetarget: there is none.
    """
    targets = list(targets)
    for target in targets:
        if _fits(environment, target=target):
            return target
    names = ", ".join(target.name for target in targets) or "none"
    raise CannotRetarget("no_worker", f"no worker compiles for {describe(environment)}; environments are {names}")
