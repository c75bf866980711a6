"""Triton kernels of users: said as data, refused unless admitted, rebuilt as they were. None of it needs a GPU."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.environments import differences, narrowed
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, GraphRejected, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.graph.launches import is_launch
from compilefarm.graph.testing import CapturedGraph, fixed_environment, trace
from compilefarm.loader.environment import describe_environment
from compilefarm.service.validation import validate
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Launch, TritonFunction, TritonGlobal, TritonKernel, Value
from compilefarm.v1.job_pb2 import Job

triton = pytest.importorskip("triton")

from compilefarm.graph.triton_kernels import describe_kernel  # noqa: E402
from compilefarm.graph.triton_modules import build_kernels  # noqa: E402

from . import triton_programs as programs  # noqa: E402

_numbers = itertools.count()
PROGRAMS: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "plain": (programs.add, 2, {}),
    "plain, dynamic": (programs.add, 2, {"dynamic": True}),
    "tuned": (programs.tuned, 1, {}),
    "tuned, dynamic": (programs.tuned, 1, {"dynamic": True}),
    "two kernels": (programs.swapped, 2, {}),
    "in subgraphs": (programs.tripled, 1, {}),
}


@pytest.fixture(autouse=True)
def has_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Dynamo looks for a GPU before it takes anything for a kernel, and for nothing else of it.
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_, **__: True)
    yield
    torch.compiler.reset()


def encoded(name: str) -> EncodedJob:
    function, inputs, options = PROGRAMS[name]
    given = [torch.ones(300, requires_grad=name == "in subgraphs") for _ in range(inputs)]
    return trace(function, *given, **options).encode()


def decoded(job: Job, folder: Path) -> DecodedJob:
    return decode_job(job, blobs={}, kernels=build_kernels(job.graph.kernels, folder=folder))


def launch_of(job: Job) -> Launch:
    return next(node.launch for node in job.graph.nodes if node.HasField("launch"))


def kernel_in(source: str, folder: Path, *, name: str = "kernel") -> Any:
    """A kernel of a file that holds this source."""
    path = folder / f"kernels_{next(_numbers)}.py"
    path.write_text(f"import triton\nimport triton.language as tl\n{source}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    job = encoded(name).job
    job.environment.triton_kernels = True
    validate(job, max_nodes=1000)
    rebuilt = decoded(job, tmp_path)
    again = CapturedGraph(graph_module=rebuilt.graph_module, example_inputs=rebuilt.inputs).encode().job
    assert again.graph == job.graph


def test_inductor_reads_the_same_source(tmp_path: Path) -> None:
    # torch/_inductor/codegen/wrapper.py: what Inductor writes into its own program of a kernel.
    from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code as source_of

    for kernel in (programs.add_kernel, programs.tuned_kernel.fn):
        (rebuilt,) = build_kernels([describe_kernel(kernel)], folder=tmp_path)
        ours, theirs = source_of(rebuilt), source_of(kernel)
        assert ours.split() == re.sub("#.*", "", theirs).split()
        assert "def half" in ours or "FACTOR = tl.constexpr(3)" in ours


def test_tuning_comes_back_as_it_was(tmp_path: Path) -> None:
    kernel = programs.tuned_kernel
    (rebuilt,) = build_kernels([describe_kernel(kernel)], folder=tmp_path)
    assert rebuilt.configs == kernel.configs
    assert (rebuilt.keys, rebuilt.reset_to_zero, rebuilt.restore_value) == (["count"], ["out_ptr"], [])
    assert [given.name for given in rebuilt.fn.params if given.do_not_specialize] == ["count"]


PLAIN = "@triton.jit\ndef kernel(x, N: tl.constexpr):\n    tl.store(x, load(x) + N)\n"
CALLED = "@triton.jit\ndef load(x):\n    return tl.load(x)\n"


def test_where_source_stands_and_what_it_remarks_does_not_count(tmp_path: Path) -> None:
    remarked = PLAIN.replace(":\n    tl.store", ":  # a remark\n\n    # More.\n    tl.store")
    remarked = f"\n\n# A remark.\n{CALLED}\n\n{remarked}"
    one, other = (describe_kernel(kernel_in(source, tmp_path)) for source in (PLAIN + CALLED, remarked))
    assert one == other
    assert str(tmp_path) not in str(one)
    assert "remark" not in str(other)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("+ N", "- N") + CALLED,
        PLAIN + CALLED.replace("tl.load(x)", "tl.load(x + 1)"),
        PLAIN.replace("+ N", "+ M") + CALLED + "M = tl.constexpr(1)\n",
        (PLAIN + CALLED).replace("triton.jit", "triton.jit(do_not_specialize=['x'])"),
        (PLAIN + CALLED).replace("triton.jit", "triton.jit(noinline=True)"),
        f"@triton.autotune([triton.Config({{'N': 1}})], key=[])\n{PLAIN}{CALLED}",
        f"@triton.autotune([triton.Config({{'N': 2}})], key=[])\n{PLAIN}{CALLED}",
        f"@triton.autotune([triton.Config({{'N': 2}}, num_warps=8)], key=[])\n{PLAIN}{CALLED}",
        f"@triton.autotune([triton.Config({{'N': 2}}, maxnreg=32)], key=[])\n{PLAIN}{CALLED}",
        f"@triton.autotune([triton.Config({{'N': 2}})], key=[], restore_value=['x'])\n{PLAIN}{CALLED}",
    ],
)
def test_what_a_kernel_does_counts(other: str, tmp_path: Path) -> None:
    others = describe_kernel(kernel_in(other, tmp_path))
    assert others != describe_kernel(kernel_in(PLAIN + CALLED, tmp_path))
    (rebuilt,) = build_kernels([others], folder=tmp_path)
    assert describe_kernel(rebuilt) == others


def test_a_constant_that_changes_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(encoded("plain").job)
    assert key_of(encoded("plain").job) == before
    monkeypatch.setattr(programs, "FACTOR", triton.language.constexpr(4))
    assert key_of(encoded("plain").job) != before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import torch\n@triton.jit\ndef kernel(x):\n    torch.relu(x)\n", "kernel refers to the module torch"),
        ("def help(x):\n    pass\n@triton.jit\ndef kernel(x):\n    help(x)\n", "help, which kernel refers to"),
        (
            "@triton.jit\ndef called(x):\n    pass\nother = called\n@triton.jit\ndef kernel(x):\n    other(x)\n",
            "as other",
        ),
        (
            "def make(y):\n"
            "    @triton.jit\n    def kernel(x):\n        tl.store(x, y)\n    return kernel\nkernel = make(1)\n",
            "variables of the function that it is defined in",
        ),
        (
            "@triton.autotune([triton.Config({}, pre_hook=print)], key=[])\n@triton.jit\ndef kernel(x):\n    pass\n",
            "sets pre_hook",
        ),
        (
            "@triton.autotune([triton.Config({})], key=[], pre_hook=print)\n@triton.jit\ndef kernel(x):\n    pass\n",
            "functions of the user's own",
        ),
        (
            "@triton.autotune([triton.Config({})], key=[], prune_configs_by={'perf_model': print})\n@triton.jit\n"
            "def kernel(x):\n    pass\n",
            "functions of the user's own",
        ),
        (
            "@triton.autotune([triton.Config({}, ir_override='a.ttgir')], key=[])\n@triton.jit\n"
            "def kernel(x):\n    pass\n",
            "sets ir_override",
        ),
        (
            "@triton.autotune([triton.Config({'N': print})], key=[])\n@triton.jit\ndef kernel(x, N):\n    pass\n",
            "N of a configuration of kernel",
        ),
        ("@triton.heuristics({'N': print})\n@triton.jit\ndef kernel(x, N):\n    pass\n", "Heuristics"),
        ("@triton.jit\ndef kernel(x):\n    pass\nkernel.add_pre_run_hook(print)\n", "hooks that run before"),
    ],
)
def test_a_kernel_that_cannot_be_said(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Bypass, match=message) as caught:
        describe_kernel(kernel_in(source, tmp_path))
    assert caught.value.reason == "triton_kernel"


def test_two_meanings_of_one_name(tmp_path: Path) -> None:
    kernel = kernel_in(PLAIN.replace("+ N", "+ M") + CALLED + "M = tl.constexpr(1)\n", tmp_path)
    called = kernel_in(CALLED.replace("(x)\n", "(x) + M\n") + "M = tl.constexpr(2)\n", tmp_path, name="load")
    kernel.fn.__globals__["load"] = called
    with pytest.raises(Bypass, match="called M"):
        describe_kernel(kernel)


def test_a_worker_that_does_not_admit_kernels_refuses_them() -> None:
    with pytest.raises(InvalidRequest, match="serve --allow-triton-kernels"):
        decode_job(encoded("plain").job, blobs={})


def test_a_farm_that_does_not_admit_kernels_has_no_worker_for_them() -> None:
    asked = []

    def environment(needs: EnvironmentNeeds) -> Environment:
        asked.append(needs)
        return describe_environment(needs)

    graph = trace(programs.add, torch.ones(300), torch.ones(300))
    wanted = encode_job(graph.graph_module, graph.example_inputs, options={}, environment=environment).job.environment
    assert asked[0].triton_kernels
    offered = Environment()
    offered.CopyFrom(wanted)
    assert differences(wanted=wanted, offered=offered) == []
    offered.triton_kernels = False
    (found,) = differences(wanted=wanted, offered=offered)
    assert "source code, which a farm runs only when it is started with serve --allow-triton-kernels" in found
    # The other way round it does not matter, and an artifact without kernels does not depend on it.
    assert differences(wanted=offered, offered=wanted) == []
    assert narrowed(wanted, wanted=offered) == offered
    assert narrowed(wanted, wanted=wanted).triton_kernels


def test_a_request_says_in_its_environment_that_it_holds_kernels() -> None:
    job = encoded("plain").job
    assert not job.environment.triton_kernels
    with pytest.raises(InvalidRequest, match="its environment does not say so"):
        validate(job, max_nodes=1000)


def _add_reference_ahead(job: Job) -> None:
    launch_of(job).arguments[0].value.node = 1000


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda job: setattr(launch_of(job), "kernel", 1), "kernel"),
        (_add_reference_ahead, "node 1000"),
        (lambda job: setattr(launch_of(job).grids[0].x, "node", 1000), "node 1000"),
        (lambda job: launch_of(job).grids[0].ClearField("y"), "kind|not set"),
        (lambda job: launch_of(job).arguments.add(name="x_ptr", value=Value(node=0)), "x_ptr|twice"),
        (lambda job: job.graph.subgraphs.add().kernels.add(), "subgraph|output"),
    ],
)
def test_gateway_and_worker_refuse_malformed_launches(
    spoil: Callable[[Job], object], message: str, tmp_path: Path
) -> None:
    job = encoded("plain").job
    job.environment.triton_kernels = True
    spoil(job)
    with pytest.raises(InvalidRequest, match=message):
        validate(job, max_nodes=1000)
    with pytest.raises(InvalidRequest, match=message):
        decoded(job, tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda launch: launch.grids.extend(list(launch.grids)), "2 grids for a kernel of 1"),
        (lambda launch: launch.ClearField("grids"), "0 grids"),
        (lambda launch: setattr(launch.arguments[-1], "name", "z_ptr"), "no parameter 'z_ptr'"),
        (lambda launch: launch.constants.add(name="b"), "not sorted"),
        (
            lambda launch: launch.constants.add(name="out_ptr", constant={"value": Value(integer=1)}),
            "an argument is given twice",
        ),
        (lambda launch: setattr(launch.constants[0], "name", "a b"), "no name"),
        (lambda launch: launch.constants[0].constant.Clear(), "not set"),
        (lambda launch: setattr(launch.constants[0].constant.value, "node", 0), "node 0"),
        (lambda launch: setattr(launch.constants[0].constant, "dtype", "fp33"), "no type 'fp33'"),
        (lambda launch: launch.named_arguments.append("nowhere"), "passed by name"),
        (lambda launch: launch.named_arguments.extend(["count", "BLOCK"]), "passed by name"),
        (lambda launch: launch.descriptors.add(name="count", value=Value(integer=1)), "no argument"),
        (lambda launch: setattr(launch.arguments[0].value, "integer", 1), "among the constants"),
    ],
)
def test_a_worker_refuses_malformed_launches(spoil: Callable[[Launch], object], message: str, tmp_path: Path) -> None:
    job = encoded("plain").job
    spoil(launch_of(job))
    with pytest.raises(InvalidRequest, match=message):
        decoded(job, tmp_path)


def _kernel(source: str = "def kernel(x):\n    pass", **fields: Any) -> TritonKernel:
    return TritonKernel(functions=[TritonFunction(name="kernel", source=source)], **fields)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (TritonKernel(), "no function"),
        (TritonKernel(functions=[TritonFunction(name="kernel", runs_in_python=True)]), "no function"),
        (_kernel(""), "not the definition"),
        (_kernel("import os"), "not the definition"),
        (_kernel("def other(x):\n    pass"), "not the definition"),
        (_kernel("@print\ndef kernel(x):\n    pass"), "not the definition"),
        (_kernel("def kernel(x):\n    pass\nprint()"), "not the definition"),
        (_kernel("async def kernel(x):\n    pass"), "not the definition"),
        (_kernel("class kernel:\n    pass"), "not the definition"),
        (_kernel(globals=[TritonGlobal(name="os", module="os")]), "module 'os'"),
        (_kernel(globals=[TritonGlobal(name="os", module="triton.../os")]), "module"),
        (_kernel(globals=[TritonGlobal(name="os", module="tritonish")]), "module"),
        (_kernel(globals=[TritonGlobal(name="f", member="os:system")]), "module 'os'"),
        (_kernel(globals=[TritonGlobal(name="f", member="triton:__builtins__")]), "no member"),
        (_kernel(globals=[TritonGlobal(name="f", member="triton")]), "no member"),
        (_kernel(globals=[TritonGlobal(name="f")]), "of no kind"),
        (_kernel(globals=[TritonGlobal(name="__builtins__", module="math")]), "a name that it defines is none"),
        (_kernel(globals=[TritonGlobal(name="a b", module="math")]), "a name that it defines is none"),
        (_kernel(globals=[TritonGlobal(name="kernel", module="math")]), "there twice"),
        (
            _kernel(globals=[TritonGlobal(name="b", module="math"), TritonGlobal(name="a", module="math")]),
            "not sorted",
        ),
        (_kernel(tuning={}), "no configurations"),
        (_kernel(tuning={"configurations": [{}], "restore_value": ["nowhere"]}), "no parameter"),
        (_kernel("def kernel(x):\n    '" + "a" * 1_000_000 + "'"), "characters"),
    ],
)
def test_malformed_kernels_are_refused(kernel: TritonKernel, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=message):
        build_kernels([kernel], folder=tmp_path)


def test_kernels_beyond_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="1001 kernels"):
        build_kernels([_kernel()] * 1001, folder=tmp_path)


@pytest.mark.parametrize(
    "kernel",
    [
        _kernel("def kernel(:"),
        _kernel("def kernel(x):\n    '\0'"),
        _kernel("def kernel(x=" + "(" * 5000 + ")" * 5000 + "):\n    pass"),
        _kernel("def kernel(x=1 / 0):\n    pass"),
        _kernel("def kernel(x: nowhere):\n    pass"),
        _kernel(globals=[TritonGlobal(name="f", member="triton.language:nowhere")]),
        _kernel(globals=[TritonGlobal(name="f", module="triton.nowhere")]),
    ],
)
def test_source_that_python_or_triton_refuses(kernel: TritonKernel, tmp_path: Path) -> None:
    with pytest.raises(GraphRejected, match="kernel 0"):
        build_kernels([kernel], folder=tmp_path)


def test_nothing_is_run_where_kernels_are_not_admitted(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    job = encoded("plain").job
    function = job.graph.kernels[0].functions[0]
    function.source = function.source.replace("count,", f"count=open({str(witness)!r}, 'w'),")
    with pytest.raises(InvalidRequest, match="--allow-triton-kernels"):
        decode_job(job, blobs={})
    assert not witness.exists()


def _swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    programs.swap_kernel[(1, 1)](x, y, x.numel(), BLOCK=512)
    return x + y


def test_a_kernel_may_write_to_what_it_is_given() -> None:
    # Inputs that share memory: whoever writes to one changes the other.
    whole = torch.ones(20)
    graph = trace(lambda x, y: _swap(x, y), whole[:10], whole[10:])
    with pytest.raises(Bypass) as caught:
        graph.encode()
    assert caught.value.reason == "aliased_inputs"


def test_a_tensor_that_a_graph_holds_becomes_an_input_where_a_kernel_is_given_it() -> None:
    graph = trace(lambda x: _swap(x, x + 1), torch.ones(10))
    held = torch.zeros(10)
    graph.graph_module.register_buffer("held", held)
    launch = next(node for node in graph.graph_module.graph.nodes if is_launch(node))
    with graph.graph_module.graph.inserting_before(launch):
        node = graph.graph_module.graph.get_attr("held")
    launch.kwargs = {**launch.kwargs, "kwargs": {**launch.kwargs["kwargs"], "y_ptr": node}}
    job = graph.encode()
    assert [given.data_ptr() for given in job.held] == [held.data_ptr()]
    assert not job.job.graph.constants


def test_equal_kernels_are_one() -> None:
    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # Dynamo makes a kernel of its own of each launch that has options.
        programs.swap_kernel[(1, 1)](x, y, x.numel(), BLOCK=512, num_warps=2)
        programs.swap_kernel[(1, 1)](y, x, x.numel(), BLOCK=512, num_warps=2)
        return x + y

    job = trace(twice, torch.ones(10), torch.ones(10)).encode().job
    assert len(job.graph.kernels) == 1
    assert job.graph.kernels[0].tuning.configurations[0].warps == 2


def test_graphs_without_kernels_ask_for_nothing() -> None:
    graph = trace(torch.sin, torch.ones(3))
    asked: list[EnvironmentNeeds] = []
    encode_job(
        graph.graph_module,
        graph.example_inputs,
        options={},
        environment=lambda needs: (asked.append(needs), fixed_environment(needs))[1],
    )
    assert not asked[0].triton_kernels


def test_descriptors_come_back_as_they_were(tmp_path: Path) -> None:
    job = encoded("plain").job
    block = Value(list={"items": [Value(integer=16)]})
    made = Value(tuple={"items": [Value(text="stable"), Value(tuple={"items": [block]})]})
    launch_of(job).descriptors.add(name="x_ptr", value=made)
    rebuilt = decoded(job, tmp_path)
    launch = next(node for node in rebuilt.graph_module.graph.nodes if is_launch(node))
    assert launch.kwargs["tma_descriptor_metadata"] == {"x_ptr": ("stable", ([16],))}
    # Where whoever compiles it looks for their types.
    assert triton.tools.tensor_descriptor.TensorDescriptor
    again = CapturedGraph(graph_module=rebuilt.graph_module, example_inputs=rebuilt.inputs).encode().job
    assert again.graph == job.graph


@pytest.mark.parametrize("name", ["plain", "in subgraphs"])
def test_a_pod_that_cannot_compile_compares_no_programs_with_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Triton would compile its kernels")

    function, inputs, _ = PROGRAMS[name]
    given = [torch.ones(300, requires_grad=name == "in subgraphs") for _ in range(inputs)]
    graph = trace(function, *given)
    graph.graph_module.forward = refuse
    monkeypatch.setattr("compilefarm.client.captured_graph.find_obstacle", lambda _: "there is no compiler")
    local_graph = TorchRuntime().local_graph(graph.graph_module, graph.example_inputs, options=dict)
    finding = local_graph.compare(refuse, graph.example_inputs)
    assert (finding.outcome, finding.detail.endswith("there is no compiler")) == ("skipped", True)
