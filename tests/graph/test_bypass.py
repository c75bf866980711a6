"""What cannot be said faithfully is a bypass with a reason, never a guess and never a crash."""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.fx import Graph, GraphModule, symbolic_trace

from compilefarm.core.compiler_settings import CUDA_GRAPHS, is_of_cuda_graphs
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.core.keys import key_of
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.v1.environment_pb2 import Environment


def _encode(graph_module: GraphModule, *inputs: Any, **options: Any) -> EncodedJob:
    return encode_job(graph_module, inputs, options=options, environment=fixed_environment)


def _call(target: Any, *args: Any, inputs: int = 1, **kwargs: Any) -> GraphModule:
    """A graph of one call; its inputs come before `args`."""
    graph = Graph()
    placeholders = [graph.placeholder(f"x{number}") for number in range(inputs)]
    create = graph.call_method if isinstance(target, str) else graph.call_function
    graph.output((create(target, (*placeholders, *args), kwargs),))
    return GraphModule(torch.nn.Module(), graph)


def _reason(graph_module: GraphModule, *inputs: Any, **options: Any) -> str:
    with pytest.raises(Bypass) as caught:
        _encode(graph_module, *inputs, **options)
    assert str(caught.value)
    return caught.value.reason


class Subclass(torch.Tensor):
    pass


class Colour(enum.Enum):
    RED = 1


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.ones(3).as_subclass(Subclass), "tensor_subclass"),
        (lambda: torch.ones(3, 3).to_sparse(), "layout"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "tensor_subclass"),
        (lambda: torch.ones(3).to_mkldnn(), "layout"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), "lazy_view"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, "lazy_view"),
        (lambda: torch.ones(5).as_strided((2, 3), (2, 1)), "overlapping_strides"),
        (lambda: torch.ones(3, device="meta"), "device_type"),
        (_quantized, "layout"),
        (lambda: 3, "number_input"),
        (lambda: 2.5, "number_input"),
        (lambda: "text", "input_type"),
        (lambda: None, "input_type"),
    ],
)
def test_inputs(make: Callable[[], Any], reason: str) -> None:
    assert _reason(_call(torch.relu), make()) == reason


def test_plain_views_are_no_bypass() -> None:
    for tensor in (torch.ones(2, 3).t(), torch.ones(9)[2::3], torch.ones(0, 4), torch.ones(2, 1, 3).expand(2, 1, 3)):
        _encode(_call(torch.relu), tensor)


def test_inputs_that_share_memory_may_be_read_but_not_written_to() -> None:
    base = torch.ones(4)
    _encode(_call(torch.add, inputs=2), base[:2], base[2:])
    assert _reason(_call("add_", inputs=2), base[:2], base[2:]) == "aliased_inputs"
    assert _reason(_call("add_", inputs=2), base, base) == "aliased_inputs"
    _encode(_call("add_", inputs=2), torch.ones(4)[:2], torch.ones(4)[2:])


def test_another_input_than_the_graph_was_traced_with() -> None:
    captured = capture(lambda x: x + 1, torch.ones(3))
    assert _reason(captured.graph_module, torch.ones(4)) == "input_mismatch"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (lambda x: x, "unknown_target"),
        (torch.load, "unknown_target"),
        (torch.save, "unknown_target"),
        (torch.hub.load, "unknown_target"),
        (torch.from_file, "unknown_target"),
        (torch.set_default_dtype, "unknown_target"),
        (torch.compile, "unknown_target"),
        (torch.ops.aten.from_file, "unknown_target"),
        (torch.ops.aten.from_file.default, "unknown_target"),
        (eval, "unknown_target"),
        (print, "unknown_target"),
        (torch.ops.higher_order.print, "higher_order_operator"),
        ("data_ptr", "unknown_target"),
        ("__reduce_ex__", "unknown_target"),
        ("no_such_method", "unknown_target"),
    ],
)
def test_targets(target: Any, reason: str) -> None:
    assert _reason(_call(target), torch.ones(3)) == reason


def test_a_target_with_an_equality_of_its_own_is_never_compared() -> None:
    class Impostor:
        __name__ = "impostor"

        def __call__(self, x: Any) -> Any:
            return x

        def __hash__(self) -> int:
            return hash(torch.relu)

        def __eq__(self, other: object) -> bool:
            return True

    assert _reason(_call(Impostor()), torch.ones(3)) == "unknown_target"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (Colour.RED, "unknown_literal"),
        (torch.ones(2), "unknown_literal"),
        (range(2**70), "unknown_literal"),
        ({1: 2}, "unknown_literal"),
        (b"bytes", "unknown_literal"),
        ("\ud800", "unknown_literal"),
        ({"\ud800": 1}, "unknown_literal"),
        (10**2000, "unknown_literal"),
        (torch.qint8, "dtype"),
        (torch.device("meta"), "device_type"),
        (functools.reduce(lambda inner, _: [inner], range(30), 1), "nesting"),
    ],
    ids=str,
)
def test_arguments(argument: Any, reason: str) -> None:
    assert _reason(_call(torch.relu, (argument,)), torch.ones(3)) == reason


def test_an_argument_of_an_unknown_type_is_named() -> None:
    with pytest.raises(Bypass, match="Colour"):
        _encode(_call(torch.relu, Colour.RED), torch.ones(3))


def test_attributes_that_may_not_be_read() -> None:
    assert _reason(_call(getattr, "__class__"), torch.ones(3)) == "unknown_target"
    assert _reason(_call(getattr, "shape", None), torch.ones(3)) == "unknown_target"
    _encode(_call(getattr, "shape"), torch.ones(3))


def test_modules_of_a_traced_model() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

    graph = Graph()
    graph.output((graph.call_module("layer", (graph.placeholder("x"),)),))
    assert _reason(GraphModule(Model(), graph), torch.ones(3)) == "module_call"


def test_results_that_are_not_in_a_tuple() -> None:
    assert _reason(symbolic_trace(lambda x: x + 1), torch.ones(3)) == "output_structure"


def test_another_number_of_inputs() -> None:
    assert _reason(_call(torch.relu), torch.ones(3), torch.ones(3)) == "input_count"


def test_a_default_device() -> None:
    with torch.device("meta"):
        assert _reason(_call(torch.relu), torch.ones(3, device="cpu")) == "default_device"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"no_such_option": 1}, "unknown_option"),
        ({"post_grad_custom_pre_pass": lambda graph: None}, "refused_option"),
        ({"cpp.enable_floating_point_contract_flag": "off -fplugin=evil.so"}, "custom_option"),
        ({"cuda.compile_opt_level": "-O3"}, "refused_option"),
        ({"aot_inductor.output_path": "somewhere"}, "refused_option"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_options(options: dict[str, Any], reason: str) -> None:
    assert _reason(_call(torch.relu), torch.ones(3), **options) == reason


def test_custom_passes_set_globally() -> None:
    with torch._inductor.config.patch(joint_custom_post_pass=lambda graph: None):
        assert _reason(_call(torch.relu), torch.ones(3)) == "refused_option"


@pytest.fixture
def fake_mode() -> Iterator[FakeTensorMode]:
    """Stands in for GPUs: fake tensors may lie on devices that this machine does not have."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def _on(device: str, fake_mode: FakeTensorMode) -> torch.Tensor:
    return torch.empty(3, 3, device=device)


def test_cuda_devices_are_numbered_by_the_request(fake_mode: FakeTensorMode) -> None:
    first, third = (_encode(_call("to", f"cuda:{index}"), _on(f"cuda:{index}", fake_mode)) for index in (0, 3))
    assert third.cuda_devices == (3,)
    assert third.job == first.job
    assert third.job.inputs[0].tensor.device.index == 0


def test_two_cuda_devices(fake_mode: FakeTensorMode) -> None:
    mixed = _on("cuda:0", fake_mode), _on("cuda:1", fake_mode)
    assert _reason(_call(torch.add, inputs=2), *mixed) == "several_devices"
    assert _reason(_call("to", torch.device("cuda", 1)), mixed[0]) == "several_devices"
    # Without an index it is the current device, number 0.
    assert _reason(_call("to", "cuda"), mixed[1]) == "several_devices"


def test_devices_named_by_a_number_alone(fake_mode: FakeTensorMode) -> None:
    assert _reason(_call("to", 0), _on("cuda:0", fake_mode)) == "device_number"
    assert _reason(_call("new_zeros", (3,), device=0), _on("cuda:0", fake_mode)) == "device_number"


@pytest.mark.parametrize("name", ["triton.cudagraph_or_error", "triton.cudagraph_trees"])
def test_settings_of_cuda_graphs_count_where_there_are_some(fake_mode: FakeTensorMode, name: str) -> None:
    options = {name: not settings.defaults(torch._inductor.config)[name]}
    on_gpu, on_cpu = _on("cuda:0", fake_mode), _on("cpu", fake_mode)
    with_graphs = {"triton.cudagraphs": True} | options
    assert _reason(_call(torch.relu), on_gpu, **with_graphs) == "refused_option"
    assert _encode(_call(torch.relu), on_gpu, **options).job == _encode(_call(torch.relu), on_gpu).job
    assert _encode(_call(torch.relu), on_cpu, **with_graphs).job == _encode(_call(torch.relu), on_cpu).job


_OF_THE_RECORDING_ALONE = [
    name
    for name in settings.defaults(torch._inductor.config)
    if INDUCTOR.without_effect.get(name, "").startswith("CUDA graphs are recorded by the process")
]


@pytest.mark.parametrize("name", _OF_THE_RECORDING_ALONE)
def test_pods_that_record_in_different_ways_have_one_artifact(fake_mode: FakeTensorMode, name: str) -> None:
    usual = {CUDA_GRAPHS: True}
    default = settings.defaults(torch._inductor.config)[name]
    other = usual | {name: not default if isinstance(default, bool) else 7}
    first, second = (_encode(_call(torch.relu), _on("cuda:0", fake_mode), **each) for each in (usual, other))
    assert key_of(first.job) == key_of(second.job)
    if is_of_cuda_graphs(name):
        assert (first.recording.get(name), second.recording[name]) == (None, 7 if default is None else other[name])


def test_cuda_graphs_change_nothing_of_a_job_but_the_setting_and_which_inputs_stay(fake_mode: FakeTensorMode) -> None:
    """Since the generated code differs: each part is a function of its own, and reads inputs in place."""
    with_graphs, without = (
        _encode(_call(torch.relu), _on("cuda:0", fake_mode), **options) for options in ({CUDA_GRAPHS: True}, {})
    )
    assert key_of(with_graphs.job) != key_of(without.job)
    with_graphs.job.options.inductor.remove(with_graphs.job.options.inductor[0])
    for given in with_graphs.job.inputs:
        given.ClearField("is_static")
    assert key_of(with_graphs.job) == key_of(without.job)
    assert without.recording == {}


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_kernels_that_each_process_would_measure_are_a_bypass_on_a_gpu_alone(
    fake_mode: FakeTensorMode, asked: int
) -> None:
    options = {"triton.multi_kernel": asked}
    assert _reason(_call(torch.relu), _on("cuda:0", fake_mode), **options) == "multi_kernel"
    assert _encode(_call(torch.relu), _on("cuda:0", fake_mode), **{"triton.multi_kernel": 0})
    assert _encode(_call(torch.relu), _on("cpu", fake_mode), **options)


def test_what_a_graph_needs_of_the_machine(fake_mode: FakeTensorMode) -> None:
    seen: list[EnvironmentNeeds] = []

    def environment(needs: EnvironmentNeeds) -> Environment:
        seen.append(needs)
        return Environment()

    def needs_of(*inputs: torch.Tensor) -> EnvironmentNeeds:
        encode_job(_call(torch.add, inputs=2), inputs, options={}, environment=environment)
        return seen[-1]

    on_cpu, on_cuda = _on("cpu", fake_mode), _on("cuda:2", fake_mode)
    assert needs_of(on_cpu, _on("cpu", fake_mode)) == EnvironmentNeeds(cpu=True, cuda_device=None)
    assert needs_of(on_cuda, torch.empty((), device="cpu")) == EnvironmentNeeds(cpu=False, cuda_device=2)
    assert needs_of(on_cuda, on_cpu) == EnvironmentNeeds(cpu=True, cuda_device=2)


def test_threads_are_no_matter_on_a_gpu(fake_mode: FakeTensorMode) -> None:
    ambient = _encode(_call(torch.relu), _on("cuda:0", fake_mode)).job.ambient
    assert ambient.cpu_threads == 0
    assert [autocast.device_type for autocast in ambient.autocast] == ["cuda"]
