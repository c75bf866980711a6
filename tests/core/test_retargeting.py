"""Requests said for another environment: the environment and the settings change, the rest stays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compilefarm.core.compiler_settings import CUDA_GRAPHS
from compilefarm.core.requests import Request
from compilefarm.core.retargeting import CannotRetarget, Target, find_target, retarget
from compilefarm.service.testing.jobs import ENVIRONMENT, sample_job
from compilefarm.v1.environment_pb2 import Cpu, Cuda, CustomOperator, Environment
from compilefarm.v1.graph_pb2 import Call, Graph, NamedValue, Node, TargetKind
from compilefarm.v1.job_pb2 import Job, Options
from compilefarm.v1.request_file_pb2 import CompileArguments
from compilefarm.v1.vocabulary_pb2 import Mode, TargetNames, Vocabulary

FUNCTION, OPERATOR = TargetKind.TARGET_KIND_TORCH_FUNCTION, TargetKind.TARGET_KIND_OPERATOR_OVERLOAD


def named(values: Mapping[str, bool | int | None]) -> list[NamedValue]:
    entries = []
    for name, value in sorted(values.items()):
        entry = NamedValue(name=name)
        if isinstance(value, bool):
            entry.value.boolean = value
        elif value is not None:
            entry.value.integer = value
        entries.append(entry)
    return entries


OLDER = Environment(
    torch="2.11.0+cpu",
    torch_build="fedcba",
    triton="3.6.0",
    python_abi=ENVIRONMENT.python_abi,
    cpu=ENVIRONMENT.cpu,
    operators=[CustomOperator(name="my_ops::scaled", schema="older")],
)
VOCABULARY = Vocabulary(
    targets=[TargetNames(kind=FUNCTION, names=["torch.relu"])],
    # In the torch of the recording, tune is off and width 4 by default.
    inductor=named({"tune": True, "width": 4, "fuse": False, "unsayable": None, CUDA_GRAPHS: False}),
    functorch=named({"view": True}),
    modes=[
        Mode(name="slow", options=named({"tune": True, "fuse": True})),
        Mode(name="graphs", options=named({"tune": True}), cuda_graphs=True),
    ],
)
TARGET = Target(name="older", environment=OLDER, vocabulary=VOCABULARY)


def recorded(
    job: Job | None = None,
    *,
    settings: Mapping[str, bool | int | None] | None = None,
    arguments: CompileArguments | None = None,
) -> Request:
    job = job or sample_job()
    job.options.CopyFrom(Options(inductor=named(settings or {})))
    return Request(job=job, arguments=arguments or CompileArguments())


def settings_of(job: Job) -> dict[str, bool | int]:
    return {
        entry.name: entry.value.integer if entry.value.HasField("integer") else entry.value.boolean
        for entry in job.options.inductor
    }


def reason(request: Request, *, target: Target = TARGET, mode: str | None = None) -> tuple[str, str]:
    with pytest.raises(CannotRetarget) as caught:
        retarget(request, target=target, mode=mode)
    return caught.value.reason, str(caught.value)


def test_the_environment_is_replaced_and_the_rest_stays() -> None:
    request = recorded()
    job = retarget(request, target=TARGET)
    assert (job.environment.torch, job.environment.torch_build, job.environment.triton) == (
        "2.11.0+cpu",
        "fedcba",
        "3.6.0",
    )
    assert (job.graph, job.inputs, job.ambient) == (request.job.graph, request.job.inputs, request.job.ambient)
    assert not job.environment.operators
    assert request.job.environment == ENVIRONMENT


def test_what_fits_already_stays_as_it_is() -> None:
    request = recorded(settings={"anything": 7})
    assert (
        retarget(request, target=Target(name="same", environment=ENVIRONMENT, vocabulary=Vocabulary())) == request.job
    )


def test_the_processor_of_the_recording_stays_if_artifacts_run_on_it() -> None:
    job = sample_job()
    job.environment.cpu.instruction_sets[:] = ["amx", "avx2", "fma"]
    assert retarget(recorded(job), target=TARGET).environment.cpu == job.environment.cpu
    job.environment.cpu.instruction_sets[:] = ["avx2"]
    assert retarget(recorded(job), target=TARGET).environment.cpu == OLDER.cpu


def test_a_graph_of_a_gpu_gets_the_gpu_of_the_workers_and_no_processor() -> None:
    job = sample_job(environment=Environment(torch="2.15.0+cu", cuda=Cuda(name="A", capability="8.0")))
    other = Environment(torch="2.15.0+cu", cuda=Cuda(name="B", capability="9.0"), cpu=Cpu(architecture="x86_64"))
    on_gpu = Target(name="b", environment=other, vocabulary=VOCABULARY)
    environment = retarget(recorded(job), target=on_gpu).environment
    assert environment.cuda == other.cuda
    assert not environment.HasField("cpu")
    assert reason(recorded(job))[0] == "no_gpu"


def test_settings_are_those_that_differ_from_the_defaults_of_the_other_torch() -> None:
    # Of the call: tune, now a default, and fuse, which was one; of the process: width.
    arguments = CompileArguments(options=named({"tune": True, "fuse": True}))
    request = recorded(settings={"tune": True, "width": 8}, arguments=arguments)
    assert settings_of(retarget(request, target=TARGET)) == {"fuse": True, "width": 8}


def test_an_option_that_was_the_default_is_said_where_it_is_not() -> None:
    request = recorded(arguments=CompileArguments(options=named({"tune": False})))
    assert settings_of(retarget(request, target=TARGET)) == {"tune": False}


def test_a_mode_is_what_it_stands_for_in_the_other_torch() -> None:
    # In the torch of the recording the mode set width as well.
    arguments = CompileArguments(mode="slow", mode_settings=["tune", "width"])
    request = recorded(settings={"tune": True, "width": 2}, arguments=arguments)
    assert settings_of(retarget(request, target=TARGET)) == {"fuse": True}
    assert settings_of(retarget(request, target=TARGET, mode="default")) == {}


def test_another_mode_for_the_same_environment() -> None:
    same = Target(name="same", environment=ENVIRONMENT, vocabulary=VOCABULARY)
    job = retarget(recorded(), target=same, mode="slow")
    assert settings_of(job) == {"fuse": True}
    assert job.environment == ENVIRONMENT
    assert reason(recorded(), mode="quick") == (
        "unknown_mode",
        "torch 2.11.0+cpu has no mode 'quick'; known are default, slow, graphs",
    )


def test_cuda_graphs_are_asked_for_on_gpus_only() -> None:
    assert settings_of(retarget(recorded(), target=TARGET, mode="graphs")) == {}
    job = sample_job(environment=Environment(torch="2.15.0", cuda=Cuda(name="A")))
    on_gpu = Target(name="a", environment=Environment(torch="2.11.0", cuda=Cuda(name="A")), vocabulary=VOCABULARY)
    assert reason(recorded(job), target=on_gpu, mode="graphs")[0] == "cuda_graphs"


def test_which_inputs_are_static_is_known_of_recordings_with_cuda_graphs() -> None:
    job = sample_job(environment=Environment(torch="2.15.0", cuda=Cuda(name="A")))
    job.inputs[0].is_static = True
    request = recorded(
        job, settings={CUDA_GRAPHS: True}, arguments=CompileArguments(mode="graphs", mode_settings=[CUDA_GRAPHS])
    )
    on_gpu = Target(name="a", environment=Environment(torch="2.11.0", cuda=Cuda(name="A")), vocabulary=VOCABULARY)
    with_graphs, without = retarget(request, target=on_gpu), retarget(request, target=on_gpu, mode="slow")
    assert settings_of(with_graphs) == {CUDA_GRAPHS: True}
    assert with_graphs.inputs[0].is_static
    # As a pod that takes no CUDA graphs would ask.
    assert settings_of(without) == {"fuse": True}
    assert not without.inputs[0].is_static


def test_weights_are_frozen_in_no_mode_that_tunes_on_them() -> None:
    job = sample_job()
    job.inputs[0].is_frozen = True
    assert retarget(recorded(job), target=TARGET, mode="slow").inputs[0].is_frozen
    tuned = recorded(job, settings={"max_autotune": True})
    with pytest.raises(CannotRetarget, match="max_autotune"):
        retarget(tuned, target=TARGET)


def test_what_the_other_torch_lacks_is_named() -> None:
    assert reason(recorded(sample_job("torch.sin"))) == (
        "unknown_operator",
        "torch 2.11.0+cpu has no function torch.sin",
    )
    job = sample_job()
    nested = Node(call=Call(kind=OPERATOR, target="aten::brand_new.out"))
    job.graph.subgraphs.append(Graph(subgraphs=[Graph(nodes=[nested])]))
    assert reason(recorded(job)) == ("unknown_operator", "torch 2.11.0+cpu has no operator aten::brand_new.out")
    options = CompileArguments(options=named({"newest": 1}))
    assert reason(recorded(settings={"newest": 1}, arguments=options))[1] == "torch 2.11.0+cpu has no setting 'newest'"


def test_operators_of_libraries_are_those_of_the_workers() -> None:
    job = sample_job()
    job.graph.nodes[1].call.MergeFrom(Call(kind=OPERATOR, target="my_ops::scaled"))
    job.environment.operators.append(CustomOperator(name="my_ops::scaled", schema="newer"))
    assert retarget(recorded(job), target=TARGET).environment.operators == OLDER.operators
    job.environment.operators.append(CustomOperator(name="my_ops::shifted"))
    assert "no operator my_ops::shifted (serve --import" in reason(recorded(job))[1]


def test_kernels_in_source_need_workers_that_take_them() -> None:
    job = sample_job()
    job.environment.triton_kernels = True
    assert reason(recorded(job))[0] == "triton_kernels"


def test_what_is_not_known_of_the_call_is_not_guessed() -> None:
    assert reason(Request(job=sample_job()))[0] == "unknown_call"
    by_variables = CompileArguments(settings_from_variables=True)
    assert reason(recorded(arguments=by_variables))[0] == "settings_from_variables"


def test_the_environment_that_a_request_is_for_is_found() -> None:
    same = Target(name="same", environment=ENVIRONMENT, vocabulary=Vocabulary())
    assert find_target(ENVIRONMENT, [TARGET, same]) is same
    with pytest.raises(CannotRetarget, match=r"no worker compiles for torch 2\.15\.0.*; environments are older"):
        find_target(ENVIRONMENT, [TARGET])
