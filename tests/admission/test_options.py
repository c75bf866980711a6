"""Options that no client of ours sends: the gateway refuses them by name, and the worker would."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from compilefarm.core.compiler_settings import CompilerSettings
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.graph import settings
from compilefarm.graph.options import config_patches
from compilefarm.service.testing import Calls, HeldCompiles, Refused, ScriptedPool, sample_job
from compilefarm.v1.compile_service_pb2 import Priority
from compilefarm.v1.graph_pb2 import Dictionary, NamedValue, Sequence, Value
from compilefarm.v1.job_pb2 import Job, Options
from tests.hostile.callers import farm

# Each ran a command on a worker, or would take away what keeps programs in their place.
NAMED = (
    "cpp_wrapper", "fx_wrapper", "cpu_backend", "cuda_backend", "xpu_backend", "tpu_backend",
    "cpp.inject_relu_bug_TESTING_ONLY", "cpp.inject_log1p_bug_TESTING_ONLY", "triton.inject_relu_bug_TESTING_ONLY",
    "force_disable_cudagraph_TESTING_ONLY", "sleep_sec_TESTING_ONLY", "lookup_table.table",
    "lookup_table.check_src_hash", "autotune_lookup_table", "pre_grad_fusion_options", "post_grad_fusion_options",
    "assert_indirect_indexing", "cpp.cxx", "cpp.march", "aot_inductor.output_path", "cuda.cutlass_dir",
    "global_cache_dir", "post_grad_custom_pre_pass", "triton.autotune_at_compile_time",
    "test_configs.autotune_choice_name_regex", "cpp.threads", "can_inplace_pad_graph_input", "assume_32bit_indexing",
    "triton.multi_kernel",
)  # fmt: skip
DISGUISED = (
    "", " ", "nothing that there is", "CPP_WRAPPER", "Cpp_Wrapper", "cpp-wrapper", "cpp_wrapper ", " cpp_wrapper",
    "cpp_wrapper\0", "cpp_wrapper\n", "cpp_wrapp\u0435r", "\uff43pp_wrapper", "cpp..threads", ".threads", "cpp.", "cpp",
    "triton", "__class__", "cpp.__class__", "max_autotune.__class__", "_config", "_is_dirty", "aot_inductor", "\x1b[2J",
    "a" * 100_000,
)  # fmt: skip
VALUES = (
    Value(boolean=True), Value(boolean=False), Value(integer=1), Value(real=1.0), Value(text="x"), Value(none={}),
    Value(list=Sequence(items=[Value(text="x")])), Value(dictionary=Dictionary()), Value(dtype="float32"),
)  # fmt: skip
NO_NUMBERS = (
    Value(integer=-1), Value(integer=1 << 62), Value(integer=-(1 << 63)), Value(real=float("nan")),
    Value(real=float("inf")), Value(real=float("-inf")), Value(real=1e300), Value(big_integer="1"),
)  # fmt: skip
TEXTS = ("", "x", "ATEN ", "ATEN,", "ATEN\0", "ATEN,ATEN", "off;", 'off"', "off\n", "flops'", "a" * 1_000_000)


def job_with(table: str, name: str, value: Value) -> Job:
    job = sample_job()
    getattr(job.options, table).append(NamedValue(name=name, value=value))
    return job


@pytest.fixture(params=["", "one"])
async def caller(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Calls]:
    """Of a farm that asks who calls, and of one that does not; nothing that it sends may come to a worker."""
    compiles = HeldCompiles()
    async with farm(tmp_path, {request.param: "prewarm"}, pool=ScriptedPool(compiles)) as callers:
        yield callers[request.param]
    assert compiles.started == []


async def refusals_of(caller: Calls, job: Job) -> list[Refused]:
    """What each way of asking for a job comes to."""
    found = []
    for ask in (
        lambda: caller.finish(job),
        lambda: caller.watch(job, priority=Priority.PRIORITY_PREWARM),
        lambda: caller.lookup(job),
        lambda: caller.plan(job),
    ):
        with pytest.raises(Refused) as refused:
            await ask()
        found.append(refused.value)
    return found


@pytest.mark.parametrize("table", ["inductor", "functorch"])
async def test_what_is_not_on_the_list_is_refused_whichever_way_it_comes(caller: Calls, table: str) -> None:
    for name in (*NAMED, *DISGUISED):
        for refused in await refusals_of(caller, job_with(table, name, Value(boolean=True))):
            assert refused.reason == InvalidRequest.reason, name
            assert len(refused.message) < 1000
            assert name.isprintable() or name not in refused.message


async def test_what_issues_name_is_refused_by_its_name(caller: Calls) -> None:
    for name in NAMED:
        for refused in await refusals_of(caller, job_with("inductor", name, Value(boolean=True))):
            assert f"'{name}' is no setting that a request may make: " in refused.message
            assert "not known" not in refused.message


@pytest.mark.parametrize("table", [INDUCTOR, FUNCTORCH])
def test_no_setting_takes_what_is_not_of_its_type(table: CompilerSettings) -> None:
    """A flag no number, a number no flag, none no text that is not on its list, and nothing a structure."""
    for name, wanted in table.allowed.items():
        for value in (*VALUES, *NO_NUMBERS, *(Value(text=text) for text in TEXTS)):
            taken = _taken(table, NamedValue(name=name, value=value))
            if taken is not _NOTHING:
                assert wanted.admits(taken)
                assert taken is None or isinstance(taken, bool | int | float | str)
                # A word of ours, and none of the texts above.
                assert not isinstance(taken, str)
                assert not isinstance(taken, float) or abs(taken) <= 1e9


_NOTHING = object()


def _taken(table: CompilerSettings, entry: NamedValue) -> object:
    try:
        return table.value_of(entry)
    except InvalidRequest:
        return _NOTHING


@pytest.mark.parametrize(
    ("table", "module"), [(INDUCTOR, torch._inductor.config), (FUNCTORCH, torch._functorch.config)]
)
def test_every_other_setting_of_this_torch_is_refused_by_the_worker_too(
    table: CompilerSettings, module: ModuleType
) -> None:
    refused: Mapping[str, object] = {
        name: default for name, default in settings.defaults(module).items() if name not in table.allowed
    }
    assert len(refused) > 20
    field = "inductor" if table is INDUCTOR else "functorch"
    for name in refused:
        for value in VALUES:
            with pytest.raises(InvalidRequest, match=re.escape(name)):
                config_patches(Options(**{field: [NamedValue(name=name, value=value)]}))


@pytest.mark.parametrize("name", DISGUISED)
def test_a_name_that_torch_has_not_is_refused_by_the_worker_too(name: str) -> None:
    for options in (
        Options(inductor=[NamedValue(name=name, value=Value(boolean=True))]),
        Options(functorch=[NamedValue(name=name, value=Value(boolean=True))]),
    ):
        with pytest.raises(InvalidRequest) as caught:
            config_patches(options)
        assert len(str(caught.value)) < 1000
