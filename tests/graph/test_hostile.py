"""Requests that nobody's client makes: each is refused with a message, in bounded time, and nothing is imported."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, FarmError, InvalidRequest, MissingBlobs
from compilefarm.core.held_tensors import MAX_ELEMENTS
from compilefarm.graph import targets
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.constants import encode_constant
from compilefarm.graph.decode import MAX_NODES, GraphRejected, decode_job
from compilefarm.graph.devices import DeviceNumbers
from compilefarm.graph.dtypes import name_dtype
from compilefarm.graph.encode import encode_job
from compilefarm.graph.literals import MAX_DEPTH
from compilefarm.graph.options import config_patches
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.torch_internals import traced_functions
from compilefarm.v1.graph_pb2 import (
    Call,
    Constant,
    Device,
    Dimension,
    GetConstant,
    NamedValue,
    Node,
    Output,
    TensorSpec,
    Value,
)
from compilefarm.v1.job_pb2 import Ambient, Autocast, Job, Options

_KINDS = {
    "torch": targets.TORCH_FUNCTION,
    "python": targets.PYTHON_FUNCTION,
    "overload": targets.OPERATOR_OVERLOAD,
    "packet": targets.OPERATOR_PACKET,
    "method": targets.TENSOR_METHOD,
}
FORBIDDEN = [
    *("torch.load", "torch.save", "torch.hub.load", "torch.hub.list", "torch.from_file", "torch.frombuffer"),
    *("torch.compile", "torch.jit.load", "torch.classes.load_library", "torch.ops.load_library", "torch.package"),
    *("torch.utils.cpp_extension.load", "torch.serialization.load", "torch._C._load_for_lite_interpreter"),
    *("torch._C._jit_pass_inline", "torch._C._set_deterministic_algorithms", "torch.set_default_dtype"),
    *("torch.os.system", "torch.sys.exit", "torch.nn.functional.torch.load", "torch.functional.os.system"),
    *("torch.relu.__globals__", "torch.relu.__self__", "torch.__builtins__.eval", "torch.__dict__", "torch"),
    *("torch.distributed.init_process_group", "torch.distributed.rpc.rpc_sync", "torch.multiprocessing.spawn"),
    *("os.system", "subprocess.run", "importlib.import_module", "pickle.loads", "ctypes.CDLL", "socket.socket"),
    *("builtins.eval", "builtins.exec", "builtins.__import__", "builtins.open", "builtins.compile"),
    *("builtins.setattr", "builtins.delattr", "builtins.globals", "builtins.type", "builtins.print"),
    *("operator.attrgetter", "operator.methodcaller", "operator.call", "operator.delitem", "operator.__call__"),
    *("math.factorial", "math.perm", "math.comb", "eval", "__import__", "getattr", "", ".", "::", "a" * 100_000),
    *("aten::from_file", "aten::from_file.default", "aten::from_file.out", "aten::save", "aten::warn", "prim::Print"),
    *("aten::add.__class__", "aten::__class__", "aten::_print", "profiler::_record_function_enter_new"),
    *("c10d::allreduce_", "_c10d_functional::all_reduce", "symm_mem::one_shot_all_reduce", "os::system", "aten::"),
    *("__reduce__", "__reduce_ex__", "__class__", "__init__", "__setstate__", "__deepcopy__", "__torch_function__"),
    *("numpy", "tolist", "data_ptr", "share_memory_", "apply_", "map_", "register_hook", "backward", "set_"),
    *("untyped_storage", "storage", "record_stream", "pin_memory", "_make_subclass", "_backward_hooks", "grad_fn"),
]


@functools.cache
def _sample() -> bytes:
    return capture(torch.relu, torch.ones(3)).encode().job.SerializeToString()


def _job(*, kind: str = "torch", target: str = "torch.relu") -> Job:
    job = Job.FromString(_sample())
    job.graph.nodes[1].call.kind = _KINDS[kind]
    job.graph.nodes[1].call.target = target
    return job


def _refusal(job: Job, **blobs: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode_job(job, blobs=blobs)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("kind", _KINDS)
def test_forbidden_targets_are_refused_and_nothing_is_imported(kind: str) -> None:
    decode_job(_job(), blobs={})
    before = set(sys.modules)
    for target in FORBIDDEN:
        assert "node 1" in _refusal(_job(kind=kind, target=target)), target
    assert set(sys.modules) == before


@pytest.mark.parametrize("kind", [0, 6, 99])
def test_name_spaces_that_are_not_known(kind: int) -> None:
    job = _job()
    job.graph.nodes[1].call.kind = kind
    _refusal(job)


@pytest.mark.parametrize("name", ["__class__", "__globals__", "grad_fn", "_backward_hooks", "data", ""])
def test_attributes(name: str) -> None:
    job = _job(kind="python", target="builtins.getattr")
    job.graph.nodes[1].call.args.add(text=name)
    _refusal(job)


def test_attribute_whose_name_is_computed() -> None:
    job = _job(kind="python", target="builtins.getattr")
    job.graph.nodes[1].call.args.add(node=0)
    _refusal(job)


@pytest.mark.parametrize("computed", [False, True], ids=["literal", "computed"])
def test_a_number_where_torch_may_take_a_dtype(computed: bool) -> None:
    # Of 127 it read beyond its table of dtypes, and took what lies there for an object: the process ended, at best.
    job = _job(kind="packet", target="aten::to")
    call = job.graph.nodes[1].call
    call.args.add(integer=6)
    if computed:
        add = Call(kind=targets.PYTHON_FUNCTION, target="operator.add", args=[Value(integer=4), Value(integer=2)])
        call.args[1].node = 1
        converted = Node(call=call)
        job.graph.nodes[1].call.CopyFrom(add)
        job.graph.nodes.insert(2, converted)
    assert "torch may take aten::to.dtype, whose dtype is a ScalarType, not 6" in _refusal(job)


def test_what_torch_may_take_a_dtype_for_is_no_number() -> None:
    for other in (Value(dtype="float64"), Value(node=0)):
        job = _job(kind="packet", target="aten::to")
        job.graph.nodes[1].call.args.append(other)
        job.graph.nodes[1].call.args.add(boolean=True)
        decode_job(job, blobs={})


def test_methods_of_other_things_than_results_of_nodes() -> None:
    job = _job(kind="method", target="split")
    job.graph.nodes[1].call.args[0].CopyFrom(Value(text="a b"))
    _refusal(job)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "if", "0", "a\0", "a=1);import os;(b", "a=__import__('os').getpid()", "*x", "**x", "a\nb", "lambda: 0"],
)
def test_keywords_that_are_code(name: str) -> None:
    job = _job()
    job.graph.nodes[1].call.kwargs.add(name=name, value=Value(integer=1))
    assert "keyword" in _refusal(job)


@pytest.mark.parametrize("text", ["'", '"', "\\", "\n", '"""', "{x}", "\0", "');import os;('", "\u2028"])
def test_graphs_return_no_text(text: str) -> None:
    graph = Graph()
    result = graph.call_function(torch.relu, (graph.placeholder("x"),))
    graph.output((result, {text: [text]}))
    graph_module = GraphModule(torch.nn.Module(), graph)
    with pytest.raises(Bypass, match="text"):
        encode_job(graph_module, [torch.ones(3)], options={}, environment=fixed_environment)
    job = _job()
    job.graph.nodes[2].output.values.add(text=text)
    _refusal(job)


@pytest.mark.parametrize("name", ["pow", "ipow", "lshift", "mul", "imul", "add", "iadd"])
def test_arithmetic_that_explodes(name: str) -> None:
    job = _job(kind="python", target=f"operator.{name}")
    del job.graph.nodes[1].call.args[:]
    job.graph.nodes[1].call.args.extend([Value(integer=2**62 + 1), Value(integer=2**62)])
    with pytest.raises((InvalidRequest, GraphRejected)):
        decode_job(job, blobs={})


@pytest.mark.parametrize("name", ["add", "iadd", "getitem", "setitem", "neg"])
def test_operators_without_operands(name: str) -> None:
    job = _job(kind="python", target=f"operator.{name}")
    del job.graph.nodes[1].call.args[:]
    with pytest.raises(GraphRejected):
        decode_job(job, blobs={})


def test_a_tensor_that_a_graph_reads_again_and_again_is_written_once() -> None:
    elements = torch.arange(MAX_ELEMENTS, dtype=torch.int64)
    content = elements.numpy().tobytes()
    job = _job()
    spec = TensorSpec(dtype="int64", device=Device(type="cpu"), shape=[Dimension(size=MAX_ELEMENTS)])
    spec.stride.add(size=1)
    job.graph.constants.add(spec=spec, digest=digest_of(content))
    del job.graph.nodes[1:]
    job.graph.nodes.extend(Node(get_constant=GetConstant(constant=0)) for _ in range(50))
    job.graph.nodes.add(output=Output(values=[Value(node=1), Value(node=50)]))
    program = decode_job(job, blobs={digest_of(content): content}).graph_module
    # What torch writes of the graph, and hashes: each number once.
    assert len(program.code) < 20 * MAX_ELEMENTS
    assert all(torch.equal(result, elements) for result in program(torch.ones(2)))


def test_a_tensor_that_is_read_within_a_mode_is_no_tensor_of_that_mode() -> None:
    content = torch.arange(3, dtype=torch.float32).numpy().tobytes()
    job = capture(torch.relu, torch.ones(3, requires_grad=True)).encode().job
    spec = TensorSpec(dtype="float32", device=Device(type="cpu"), shape=[Dimension(size=3)])
    spec.stride.add(size=1)
    job.graph.constants.add(spec=spec, digest=digest_of(content))
    enter = traced_functions.ENTER_INFERENCE
    read = Node(get_constant=GetConstant(constant=0))
    del job.graph.nodes[1:]
    job.graph.nodes.extend(
        (
            _node(enter, Value(boolean=True)),
            read,
            _node("torch.relu", Value(node=2)),
            _node(traced_functions.EXITS[enter], Value(node=1)),
            read,
            # An inference tensor cannot be saved for the gradient of the other.
            _node("torch.mul", Value(node=0), Value(node=5)),
            Node(output=Output(values=[Value(node=6)])),
        )
    )
    program = decode_job(job, blobs={digest_of(content): content}).graph_module
    assert torch.equal(program(torch.ones(3, requires_grad=True))[0], torch.arange(3.0))


def _node(target: str, *args: Value) -> Node:
    return Node(call=Call(kind=targets.TORCH_FUNCTION, target=target, args=args))


def _attention() -> Job:
    def program(x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return scaled_dot_product_attention(x, x, x)

    return capture(program, torch.ones(1, 2, 3, 4)).encode().job


def _call(job: Job, target: str) -> Call:
    """The first call of a target."""
    return next(node.call for node in job.graph.nodes if node.call.target == target)


@pytest.mark.parametrize(
    "backends",
    [
        [Value(integer=1)],
        # Torch has an array for five, and writes whatever is here into it, and behind it.
        [Value(integer=0x41414141)] * 200,
        [Value(node=1), Value(node=1)],
        [Value(node=0)],
        [Value(boolean=True)],
    ],
)
@pytest.mark.parametrize("kind", ["list", "tuple"])
def test_backends_for_attention_are_those_that_there_are_each_once(backends: list[Value], kind: str) -> None:
    job = _attention()
    entering = _call(job, traced_functions.SDPA_KERNEL)
    decode_job(job, blobs={})
    entering.args[0].Clear()
    getattr(entering.args[0], kind).items.extend(backends)
    assert "each once" in _refusal(job)


@pytest.mark.parametrize("spoil", [lambda call: call.args.pop(), lambda call: call.args[1].CopyFrom(Value(integer=1))])
def test_whether_backends_for_attention_are_in_an_order_is_a_literal(spoil: Callable[[Call], object]) -> None:
    job = _attention()
    spoil(_call(job, traced_functions.SDPA_KERNEL))
    assert "each once" in _refusal(job)


def test_no_backend_for_attention_is_none_of_them() -> None:
    job = _attention()
    _call(job, traced_functions.SDPA_BACKEND).args[0].text = "ERROR"
    assert "a backend for attention" in _refusal(job)


@pytest.mark.parametrize("place", [-100_000, -100, -4, 3, 1000, 2**40])
def test_a_batch_is_put_where_there_is_a_place(place: int) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # It has nothing of the batch.
        return torch.vmap(lambda _: y * 2)(x)

    job = capture(program, torch.ones(3, 4), torch.ones(2, 2)).encode().job
    decode_job(job, blobs={})
    _call(job, "torch._functorch.predispatch._remove_batch_dim").args[3].integer = place
    with pytest.raises(GraphRejected, match="Dimension out of range"):
        decode_job(job, blobs={})


def test_grad_mode_takes_a_literal_alone() -> None:
    _refusal(_job(target=traced_functions.GRAD_MODE))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job.graph.nodes[1].call.args[0].CopyFrom(Value(node=1)),
        lambda job: job.graph.nodes[1].call.args[0].CopyFrom(Value(node=2)),
        lambda job: job.graph.nodes[1].call.args[0].CopyFrom(Value(node=2**32 - 1)),
        lambda job: job.graph.nodes[1].call.args[0].Clear(),
        lambda job: job.graph.nodes[1].Clear(),
        lambda job: job.graph.nodes[1].CopyFrom(Node(get_constant=GetConstant(constant=0))),
        lambda job: job.graph.nodes[1].call.args.add(dtype="no_such_dtype"),
        lambda job: job.graph.nodes[1].call.args.add(dtype="qint8"),
        lambda job: job.graph.nodes[1].call.args.add(layout="no_such_layout"),
        lambda job: job.graph.nodes[1].call.args.add(memory_format="no_such_format"),
        lambda job: job.graph.nodes[1].call.args.add(device=Device(type="meta")),
        lambda job: job.graph.nodes[1].call.args.add(device=Device(type="cuda", index=1)),
        lambda job: job.graph.nodes[1].call.args.add(big_integer="__import__('os')"),
        lambda job: job.graph.nodes[1].call.args.add(big_integer="9" * 5000),
        lambda job: job.graph.nodes[1].call.kwargs.extend(NamedValue(name=name, value=Value(node=0)) for name in "ba"),
        lambda job: job.graph.nodes[1].call.kwargs.extend(NamedValue(name=name, value=Value(node=0)) for name in "aa"),
        lambda job: job.graph.nodes[2].CopyFrom(job.graph.nodes[1]),
        lambda job: job.graph.nodes[1].CopyFrom(job.graph.nodes[2]),
        lambda job: job.graph.nodes.append(job.graph.nodes[1]),
        lambda job: job.graph.nodes.insert(0, job.graph.nodes.pop(1)),
        lambda job: job.graph.nodes.append(job.graph.nodes[0]),
        lambda job: job.graph.Clear(),
        lambda job: job.inputs.pop(),
        lambda job: job.inputs.append(job.inputs[0]),
        lambda job: job.inputs[0].Clear(),
    ],
)
def test_graphs_that_contradict_themselves(spoil: Callable[[Job], object]) -> None:
    job = _job()
    spoil(job)
    _refusal(job)


def _sizes(*sizes: int) -> list[Dimension]:
    return [Dimension(size=size) for size in sizes]


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((-1,), (1,), 0),
        ((3,), (-1,), 0),
        ((3,), (1,), -1),
        ((3,), (1, 1), 0),
        ((2**62,), (1,), 0),
        ((2**40, 2**40), (2**40, 1), 0),
        ((3,), (2**62,), 0),
        ((3,), (1,), 2**62),
        ((2**63 - 1,) * 60, (2**63 - 1,) * 60, 2**63 - 1),
        ((1,) * 1000, (1,) * 1000, 0),
        ((3, 3), (1, 1), 0),
        ((2**50,), (0,), 0),
        ((2**40, 2**40), (0, 0), 0),
    ],
)
def test_sizes_out_of_bounds(shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    job = _job()
    spec = job.inputs[0].tensor
    del spec.shape[:], spec.stride[:]
    spec.shape.extend(_sizes(*shape))
    spec.stride.extend(_sizes(*stride))
    spec.storage_offset.size = offset
    assert "input 0" in _refusal(job)


def test_sizes_that_are_not_set() -> None:
    job = _job()
    job.inputs[0].tensor.shape[0].Clear()
    _refusal(job)


@pytest.mark.parametrize("dtype", ["", "float", "qint8", "bits8", "int4", "__class__"])
def test_dtypes_of_inputs(dtype: str) -> None:
    job = _job()
    job.inputs[0].tensor.dtype = dtype
    _refusal(job)


def test_gradients_of_integers() -> None:
    job = _job()
    job.inputs[0].tensor.dtype = "int64"
    job.inputs[0].tensor.requires_grad = True
    _refusal(job)


def test_too_deep_nesting() -> None:
    job = _job()
    value = job.graph.nodes[1].call.args.add()
    for _ in range(MAX_DEPTH + 2):
        value = value.list.items.add()
    value.integer = 1
    _refusal(job)


def test_too_many_nodes() -> None:
    job = _job()
    subgraph = job.graph.subgraphs.add()
    subgraph.nodes.extend([Node()] * MAX_NODES)
    subgraph.nodes.add().output.result.none.SetInParent()
    assert f"at most {MAX_NODES}" in _refusal(job)


def _with_constant(content: bytes, *, size: int = 3) -> tuple[Job, Constant]:
    job = _job()
    constant = job.graph.constants.add()
    constant.spec.CopyFrom(job.inputs[0].tensor)
    constant.spec.shape[0].size = size
    constant.digest = digest_of(content)
    return job, constant


def test_constants() -> None:
    content = bytes(12)
    job, constant = _with_constant(content)
    decode_job(job, blobs={constant.digest: content})
    with pytest.raises(MissingBlobs):
        decode_job(job, blobs={})
    with pytest.raises(DigestMismatch):
        decode_job(job, blobs={constant.digest: b"x" * 12})
    for size in (2, 4, 2**40):
        job, constant = _with_constant(content, size=size)
        _refusal(job, **{constant.digest: content})
    for spoil in ("stride", "storage_offset"):
        job, constant = _with_constant(content)
        if spoil == "stride":
            constant.spec.stride[0].size = 2
        else:
            constant.spec.storage_offset.size = 1
        _refusal(job, **{constant.digest: content})


@pytest.mark.parametrize(("content", "is_taken"), [(b"\0\1\1", True), (b"\0\2\1", False), (b"\xff\0\0", False)])
def test_booleans_that_a_graph_holds_are_zero_or_one(content: bytes, *, is_taken: bool) -> None:
    job, constant = _with_constant(content)
    constant.spec.dtype = name_dtype(torch.bool)
    if is_taken:
        decode_job(job, blobs={constant.digest: content})
    else:
        assert "booleans that are neither 0 nor 1" in _refusal(job, **{constant.digest: content})


def test_a_pod_writes_booleans_of_any_bytes_as_zero_and_one() -> None:
    constant = Constant()
    held = torch.tensor([0, 2, 255], dtype=torch.uint8).view(torch.bool)
    assert encode_constant(held, into=constant, devices=DeviceNumbers(), what="it") == b"\0\1\1"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ambient: setattr(ambient, "float32_matmul_precision", "exact"),
        lambda ambient: setattr(ambient, "default_dtype", "int64"),
        lambda ambient: setattr(ambient, "default_dtype", ""),
        lambda ambient: setattr(ambient, "cpu_threads", 2**31),
        lambda ambient: ambient.autocast.append(Autocast(device_type="meta")),
        lambda ambient: ambient.autocast.append(Autocast(device_type="cpu", enabled=True, dtype="int8")),
        lambda ambient: ambient.backends.add(name="cudnn.__class__"),
        lambda ambient: ambient.backends.add(name="cudnn.enabled", value=Value(text="yes")),
        lambda ambient: ambient.backends.add(name="fp32_precision", value=Value(text="exact")),
        lambda ambient: ambient.backends.add(name="fp32_precision"),
    ],
)
def test_ambient_states(spoil: Callable[[Ambient], object]) -> None:
    ambient = _job().ambient
    spoil(ambient)
    with pytest.raises(InvalidRequest), apply_ambient(ambient):
        pytest.fail("entered")
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpp.cxx", Value(text="/tmp/evil")),
        ("trace.debug_dir", Value(text="anywhere")),
        ("triton.cudagraph_trees", Value(boolean=False)),
        ("_fuse_ddp_communication_passes", Value()),
        ("reorder_for_compute_comm_overlap_passes", Value(text="exec")),
        ("cuda.cuda_cxx", Value(text="evil")),
        ("no_such_setting", Value(boolean=True)),
        ("__class__", Value(boolean=True)),
        ("max_autotune_gemm_backends", Value(text="ATEN -fplugin=evil.so")),
        ("max_autotune_gemm_backends", Value(text="/tmp/evil")),
        ("max_autotune", Value()),
    ],
)
def test_settings_that_a_request_may_not_make(name: str, value: Value) -> None:
    with pytest.raises(InvalidRequest):
        config_patches(Options(inductor=[NamedValue(name=name, value=value)]))
    with pytest.raises(InvalidRequest):
        config_patches(Options(functorch=[NamedValue(name=name, value=value)]))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(position=st.integers(0, 10_000), junk=st.binary(max_size=8), cut=st.integers(0, 10_000))
def test_bytes_that_were_damaged_on_the_way(position: int, junk: bytes, cut: int) -> None:
    content = _SAMPLE
    position, cut = position % len(content), cut % len(content)
    damaged = content[:position] + junk + content[position + len(junk) :]
    for candidate in (damaged, content[:cut]):
        try:
            job = Job.FromString(candidate)
        except DecodeError:
            continue
        try:
            decode_job(job, blobs={})
        except (FarmError, GraphRejected):
            continue


_SAMPLE = (
    capture(
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=(1, 1)).flatten(1)[:, 1:5].softmax(-1, torch.float64),
        torch.ones(1, 2, 4, 4),
        torch.ones(3, 2, 3, 3),
    )
    .encode()
    .job.SerializeToString()
)


def test_a_call_without_its_arguments_is_the_graphs_fault() -> None:
    job = _job()
    job.graph.nodes[1].CopyFrom(Node(call=Call(kind=targets.TORCH_FUNCTION, target="torch.relu")))
    with pytest.raises(GraphRejected):
        decode_job(job, blobs={})
