"""Texts of requests are short, and few: they stand in messages, are kept beside jobs and are compared with workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from compilefarm.core.environments import differences
from compilefarm.service.testing import Calls, Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.validation import MAX_ENVIRONMENT_BYTES, MAX_SOURCE, MAX_TEXT
from compilefarm.v1.environment_pb2 import Cpu, CustomOperator, Environment
from compilefarm.v1.graph_pb2 import NamedValue, TritonFunction, TritonKernel, Value
from compilefarm.v1.job_pb2 import FAILURE_KIND_NOT_SERIALIZABLE, CompileFailure, Job

LONG = "x" * (MAX_TEXT + 1)
HUGE = "x" * 3_900_000


def call_of(job: Job):  # type: ignore[no-untyped-def]  # generated code
    return job.graph.nodes[1].call


TOO_LONG: dict[str, tuple[Callable[[Job], object], str]] = {
    "the name of a torch": (
        lambda job: setattr(job.environment, "torch", HUGE),
        r"Environment\.torch has 3900000 characters",
    ),
    "a Python": (lambda job: setattr(job.environment, "python_abi", LONG), r"python_abi has 4097 characters"),
    "a version that is a number": (lambda job: setattr(job.environment.cpu, "glibc", "9" * 5000), "glibc has 5000"),
    "a GPU": (lambda job: setattr(job.environment.cuda, "name", LONG), r"Cuda\.name has 4097 characters"),
    "an instruction set": (lambda job: job.environment.cpu.instruction_sets.append(LONG), "instruction_sets has 4097"),
    "many settings": (lambda job: job.environment.cpu.settings.extend(["a"] * 1001), "settings are 1001"),
    "many operators": (
        lambda job: job.environment.operators.extend([CustomOperator(name="a")] * 1001),
        "operators of the environment are 1001",
    ),
    "an operator": (lambda job: job.environment.operators.add(name=LONG), r"CustomOperator\.name has 4097 characters"),
    "many long schemas": (
        lambda job: job.environment.operators.extend([CustomOperator(schema="x" * MAX_TEXT)] * 33),
        f"at most {MAX_ENVIRONMENT_BYTES} are allowed",
    ),
    "what is called": (lambda job: setattr(call_of(job), "target", HUGE), r"Call\.target has 3900000 characters"),
    "an argument": (lambda job: call_of(job).args.add(text=LONG), r"Value\.text has 4097 characters"),
    "the name of an argument": (
        lambda job: call_of(job).kwargs.append(NamedValue(name=LONG, value=Value(boolean=True))),
        r"NamedValue\.name has 4097 characters",
    ),
    "a number": (lambda job: call_of(job).args.add(big_integer="9" * 5000), "big_integer has 5000 characters"),
    "an option": (lambda job: job.options.inductor.add(name=LONG), r"NamedValue\.name has 4097"),
    "a dtype": (lambda job: setattr(job.ambient, "default_dtype", LONG), "default_dtype has 4097"),
    "a kind of device": (lambda job: job.ambient.autocast.add(device_type=LONG), "device_type has 4097"),
    "a dtype of an input": (lambda job: setattr(job.inputs[0].tensor, "dtype", LONG), r"TensorSpec\.dtype has 4097"),
    "the source of a kernel": (
        lambda job: job.graph.kernels.append(TritonKernel(functions=[TritonFunction(source="x" * (MAX_SOURCE + 1))])),
        f"source has {MAX_SOURCE + 1} characters",
    ),
    "many names of parameters": (
        lambda job: job.graph.kernels.append(TritonKernel(functions=[TritonFunction(unaligned=["a"] * 1001)])),
        "unaligned are 1001",
    ),
}


@pytest.mark.parametrize(("lengthen", "message"), TOO_LONG.values(), ids=TOO_LONG)
async def test_a_long_text_is_refused_and_not_repeated(lengthen: Callable[[Job], object], message: str) -> None:
    job, pool = sample_job(), ScriptedPool()
    lengthen(job)
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        for ask in (calls.plan, calls.lookup, calls.finish):
            with pytest.raises(Refused, match=message) as refused:
                await ask(job)
            assert refused.value.reason == "invalid_request"
            assert len(refused.value.message) < 300
    assert not pool.assignments


async def test_a_version_in_other_digits_is_no_defect_of_the_farm() -> None:
    job = sample_job()
    job.environment.cpu.glibc = "2.²"
    async with serving() as gateway, calling(gateway.address) as calls:
        assert "glibc" in (await calls.plan(job)).problem


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (Calls.inspect, "invalid_request"),
        (Calls.cancel, "no_such_job"),
        (Calls.retry, "no_such_job"),
        (Calls.read, "invalid_request"),
        (Calls.describe_environment, "no_matching_worker"),
    ],
)
async def test_a_long_name_of_what_is_asked_for_is_not_repeated(
    ask: Callable[[Calls, str], Awaitable[object]], reason: str
) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused) as refused:
            # More is refused before it is parsed.
            await ask(calls, "a" * 16_000)
    assert refused.value.reason == reason
    assert len(refused.value.message) < 300


async def test_failures_of_one_caller_do_not_hide_the_list_of_jobs() -> None:
    # A client takes no answer of more than 4 MiB.
    failure = CompileFailure(kind=FAILURE_KIND_NOT_SERIALIZABLE, message="a" * 4000, log_tail="b" * 16_000)

    async def fail(*_: object) -> CompileFailure:
        return failure

    async with serving(pool=ScriptedPool(fail)) as gateway, calling(gateway.address) as calls:
        for number in range(300):
            await calls.finish(sample_job(f"torch.f{number}"))
        listed = (await calls.list_jobs()).quarantined
    assert len(listed) == 300
    assert listed[0].failure.message.startswith("aaa")
    assert listed[0].failure.log_tail.endswith("bbb")


def test_a_version_with_thousands_of_digits_is_a_version() -> None:
    wanted, offered = (Environment(cpu=Cpu(glibc=f"2.{minor}")) for minor in ("39", "9" * 5000))
    assert any("glibc" in difference for difference in differences(wanted=wanted, offered=offered))
    assert not any("glibc" in difference for difference in differences(wanted=offered, offered=wanted))
