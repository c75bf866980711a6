"""Arguments of operators that contradict each other: kernels would read past their tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import encode
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.symbols import put_guards
from compilefarm.graph.targets import (
    OPERATOR_OVERLOAD,
    OPERATOR_PACKET,
    PYTHON_FUNCTION,
    TENSOR_METHOD,
    TORCH_FUNCTION,
)
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.torch_internals.operators import OpOverload, register_quantized_operators
from compilefarm.v1.graph_pb2 import Call, Node, Sequence, TargetKind, Value
from compilefarm.v1.job_pb2 import Job

Given = tuple[tuple[object, ...], dict[str, object]]

aten = torch.ops.aten
IMAGE = torch.ones(1, 3, 8, 8)
FEW, MANY = torch.ones(2), torch.ones(64)


def job_of(called: object, *inputs: torch.Tensor, call: Callable[..., Given]) -> Job:
    """A graph that calls one operator with arguments made of its placeholders."""
    graph = Graph()
    args, kwargs = call(*(graph.placeholder(f"x{number}") for number in range(len(inputs))))
    graph.call_function(called, args, kwargs)  # type: ignore[arg-type]
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    given = [each.clone(memory_format=torch.preserve_format) if each.is_contiguous() else each for each in inputs]
    return encode_job(module, given, options={}, environment=fixed_environment).job


def positional(*rest: object) -> Callable[..., Given]:
    return lambda *nodes: ((*nodes, *rest), {})


ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
OBSERVED = aten.fused_moving_avg_obs_fake_quant.default
register_quantized_operators()
QUANTIZED = torch.ops.quantized_decomposed
BYTES = torch.ones(64, dtype=torch.uint8)
HALVES = torch.ones(2, 5, dtype=torch.complex64)
ONE = torch.ones(1)
ROWS, WEIGHTS = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, 32, dtype=torch.uint8)


def grouped(size: int) -> Callable[..., Given]:
    return lambda rows, weights, scales: ((rows, weights, size, scales), {})


NARROW = torch.ones(1)
SIZES = ((1, 3, 64), (1, 3, 64), (256, 10), (256, 64), (256,), (256,))


def recurrence(x: object, hidden: object, cells: object, *weights: object) -> Given:
    return (x, [hidden, cells], list(weights), True, 1, 0.0, False, False, False), {}


BAGS = (torch.ones(10, 4), torch.zeros(6, dtype=torch.int64), torch.tensor([0, 2, 4]))
FACTORS, PIVOTS = torch.eye(4).repeat(3, 1, 1), torch.arange(1, 5).int().repeat(3, 1)
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}

POOLED = ([2, 2], [2, 2], [0, 0], False, True, None)


def copied(one: object, other: object) -> Given:
    return ([one], [other, other]), {}


def adam(parameter: object, other: object, step: object) -> Given:
    return ([parameter], [parameter], [other], [parameter], [], [step]), dict(ADAM)


@pytest.mark.parametrize(
    ("called", "inputs", "call"),
    [
        (QUANTIZED.quantize_per_channel.default, (MANY, FEW, FEW.long()), positional(0, 0, 255, torch.uint8)),
        (QUANTIZED.dequantize_per_channel.default, (BYTES, FEW, FEW.long()), positional(-1, 0, 255, torch.uint8)),
        (QUANTIZED.dequantize_per_channel.default, (BYTES, FEW, FEW.long()), positional(-2, 0, 255, torch.uint8)),
        (aten._fft_r2c.default, (IMAGE,), positional([-1], 0, True)),
        (aten._fft_r2c.default, (IMAGE,), positional([2, 2], 0, True)),
        (aten._fft_r2c.default, (IMAGE,), positional([3], 7, True)),
        (aten._fft_c2c.default, (HALVES,), positional([], 0, True)),
        (aten._fft_c2r.default, (HALVES,), positional([1], 0, 64)),
        (aten._fft_c2r.default, (HALVES,), positional([1], 0, -7)),
        (aten._pdist_forward.default, (torch.ones(5, 4, 0),), positional(2.0)),
        (aten.native_batch_norm.default, (IMAGE, FEW, FEW, FEW, FEW), positional(False, 0.1, 1e-5)),
        (aten._native_batch_norm_legit.default, (IMAGE, FEW, FEW, FEW, FEW), positional(True, 0.1, 1e-5)),
        (aten._weight_norm_interface.default, (torch.ones(64, 4), FEW), positional(0)),
        (ATTENTION, (torch.ones(4, 2, 8, 4), torch.ones(1, 2, 8, 4), torch.ones(1, 2, 8, 4)), positional()),
        (ATTENTION, (torch.ones(1, 2, 8, 4), torch.ones(1, 2, 64, 4), torch.ones(1, 2, 2, 4)), positional()),
        (ATTENTION, (torch.ones(1, 4, 8, 4), torch.ones(1, 4, 8, 4), torch.ones(1, 1, 8, 4)), positional()),
        (ATTENTION, (torch.ones(1, 4, 8, 4), torch.ones(1, 3, 8, 4), torch.ones(1, 3, 8, 4)), positional()),
        (ATTENTION, (torch.ones(1, 4, 0, 4), torch.ones(1, 4, 8, 4), torch.ones(1, 4, 8, 4)), positional()),
        (ATTENTION, (torch.ones(1, 4, 3, 8).bfloat16(), *[torch.ones(1, 4, 0, 8).bfloat16()] * 2), positional()),
        (ATTENTION, (NARROW.expand(1, 4, 8, 4), torch.ones(1, 4, 8, 4), torch.ones(1, 4, 8, 4)), positional()),
        (
            aten.native_group_norm.default,
            (IMAGE, torch.ones(1).expand(3), torch.ones(3)),
            positional(1, 3, 64, 1, 1e-5),
        ),
        (
            aten._weight_int4pack_mm_for_cpu.default,
            (ROWS, WEIGHTS, torch.ones(1, 64, 2, dtype=torch.bfloat16)),
            grouped(32),
        ),
        (
            aten._weight_int4pack_mm_for_cpu.default,
            (ROWS, WEIGHTS, torch.ones(2, 64, 2, dtype=torch.bfloat16)),
            grouped(0),
        ),
        (OBSERVED, (torch.ones(64, 4), *[ONE] * 5, ONE.int()), positional(0.1, 0, 255, 0, True)),
        (OBSERVED, (torch.ones(1, 1, 1), *[ONE] * 5, ONE.int()), positional(0.1, 0, 255, -3, True)),
        (OBSERVED, (torch.ones(64, 4), ONE, ONE, *[torch.ones(64)] * 3, ONE.int()), positional(0.1, 0, 255, 0, True)),
        (
            OBSERVED,
            (torch.ones(64, 4), ONE, ONE, NARROW.expand(64), *[torch.ones(64)] * 2, torch.ones(64).int()),
            positional(0.1, 0, 255, 0, True),
        ),
        (aten._weight_int4pack_mm_for_cpu.default, (ROWS, WEIGHTS, NARROW.bfloat16().expand(2, 64, 2)), grouped(32)),
        (
            aten._weight_int8pack_mm.default,
            (ROWS, torch.ones(64, 64, dtype=torch.int8), NARROW.bfloat16().expand(64)),
            positional(),
        ),
        (aten._weight_norm_interface.default, (torch.ones(64, 4), NARROW.expand(64, 1)), positional(0)),
        (aten.rrelu_with_noise.default, (MANY, NARROW.expand(64)), positional(0.1, 0.3, True, None)),
        (aten._weight_norm_interface.default, (torch.ones(4, 4, 4), FEW), positional(1)),
        (aten.resize_.default, (NARROW.expand(64),), positional([80])),
        (aten.resize.default, (NARROW.expand(64),), positional([80])),
        (aten.resize_as.default, (NARROW.expand(64), torch.ones(80)), positional()),
        (aten.median.dim, (NARROW.expand(64),), positional(-1)),
        (aten.nanmedian.dim, (torch.ones(3, 1).expand(3, 8),), positional(1, True)),
        (aten._softmax_backward_data.default, (torch.ones(4, 4), torch.ones(2, 4)), positional(1, torch.float32)),
        (aten._log_softmax_backward_data.default, (torch.ones(4, 4), FEW), positional(1, torch.float32)),
        (aten._batch_norm_with_update.default, (IMAGE, FEW, FEW, FEW, FEW), positional(0.1, 1e-5)),
        (aten.avg_pool2d_backward.default, (torch.ones(9, 3, 4, 4), IMAGE), positional(*POOLED)),
        (aten._adaptive_avg_pool2d_backward.default, (torch.ones(1, 9, 4, 4), IMAGE), positional()),
        (aten._adaptive_avg_pool2d_backward.default, (torch.ones(1, 3, 4, 4), IMAGE[..., :0]), positional()),
        (aten._adaptive_avg_pool3d_backward.default, (torch.ones(3, 1, 2, 2), IMAGE[..., :0]), positional()),
        (aten.replication_pad2d_backward.default, (torch.ones(9, 3, 10, 10), IMAGE), positional([1, 1, 1, 1])),
        (aten.channel_shuffle.default, (IMAGE,), positional(0)),
        (aten.native_channel_shuffle.default, (IMAGE,), positional(0)),
        (aten.special_laguerre_polynomial_l.n_scalar, (FEW,), positional(2**40)),
        (aten.special_laguerre_polynomial_l.default, (FEW, FEW), positional()),
        (aten.special_legendre_polynomial_p.x_scalar, (FEW,), lambda degree: ((0.5, degree), {})),
        (aten.special_chebyshev_polynomial_t.x_scalar, (FEW,), lambda degree: ((0.5, degree), {})),
        (aten.special_shifted_chebyshev_polynomial_w.n_scalar, (FEW,), positional(2**40)),
        (aten.histc.default, (FEW.bfloat16(),), positional(259, 0, 1)),
        (aten.histc.default, (FEW.half(),), positional(2051, 0, 1)),
        (aten.histc.default, (FEW,), lambda values: ((values,), {"bins": 2**24 + 3, "max": 1})),
        (aten.embedding_bag.default, BAGS, positional(False, 5)),
        (aten.embedding_bag.default, (*BAGS[:2], BAGS[2][:0]), positional(False, 2)),
        (aten._embedding_bag.default, (*BAGS[:2], BAGS[2][:0]), positional(False, 2)),
        (aten._embedding_bag_forward_only.default, BAGS, positional(False, 5)),
        (aten._embedding_bag_forward_only.default, (BAGS[0], BAGS[1][:1].expand(64), BAGS[2]), positional(False, 1)),
        (aten._embedding_bag.default, (BAGS[0], BAGS[1][::2], BAGS[2][:1]), positional()),
        (aten.linalg_ldl_solve.default, (FACTORS, PIVOTS, torch.ones(2, 3, 4, 1)), positional()),
        (aten.linalg_ldl_solve.default, (FACTORS[:1], PIVOTS[:1], torch.ones(3, 4, 1)), positional()),
        (aten._foreach_copy.default, (FEW, FEW), copied),
        (aten._fused_adam_.default, (MANY, FEW, torch.ones(())), adam),
        (aten._fused_adam_.default, (MANY, MANY.double(), torch.ones(())), adam),
        (aten._fused_adam_.default, (MANY, MANY, FEW), adam),
        (aten._fused_adam_.default, (MANY, FEW[:1].expand(64), torch.ones(())), adam),
    ],
)
def test_contradictions_are_refused_by_name(
    called: OpOverload, inputs: tuple[torch.Tensor, ...], call: Callable[..., object]
) -> None:
    job = job_of(called, *inputs, call=call)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=called._schema.name.partition("::")[2]):
        decode_job(job, blobs={})


@pytest.mark.parametrize(
    ("called", "inputs", "call"),
    [
        (ATTENTION, (torch.ones(2, 4, 8, 4), torch.ones(2, 2, 6, 4), torch.ones(2, 2, 6, 4)), positional()),
        (aten._weight_int4pack_mm_for_cpu.default, (ROWS, WEIGHTS, torch.ones(2, 64, 2).bfloat16()), grouped(32)),
        (OBSERVED, (torch.ones(64, 4), *[ONE] * 5, ONE.int()), positional(0.1, 0, 255, 0)),
        (OBSERVED, (torch.ones(1, 4), *[ONE] * 5, ONE.int()), positional(0.1, 0, 255, 0, True)),
        (aten.native_group_norm.default, (IMAGE,), lambda image: ((image, None, None, 1, 3, 64, 1, 1e-5), {})),
        (ATTENTION, (torch.ones(2, 8, 12, 4).transpose(1, 2)[:, :4],) * 3, positional()),
        (aten.special_laguerre_polynomial_l.n_scalar, (FEW,), positional(3)),
        (aten.histc.default, (FEW.bfloat16(),), positional(128, 0, 1)),
        (aten.histc.default, (FEW.half(),), positional()),
        (aten.histc.default, (FEW,), positional(2**23, 0, 1)),
        (aten.embedding_bag.padding_idx, BAGS, positional(False, 2, False, None, False, 1)),
        (aten._embedding_bag.default, (BAGS[0], BAGS[1][:0], BAGS[2][:0]), positional(False, 2)),
        (aten.linalg_ldl_solve.default, (FACTORS, PIVOTS, torch.ones(1, 4, 1)), positional()),
        (aten.linalg_ldl_solve.default, (FACTORS, PIVOTS, torch.ones(4, 1)), positional()),
        (aten.median.dim, (NARROW.expand(4, 1),), positional(1)),
        (aten.median.dim, (torch.ones(3, 1).expand(3, 8),), positional(0)),
        (aten.median.default, (NARROW.expand(64),), positional()),
        (OBSERVED, (torch.ones(9, 4), ONE, ONE, *[torch.ones(0)] * 3, ONE.int()), positional(0.1, 0, 255, 0, True)),
    ],
)
def test_arguments_that_fit_each_other(
    called: object, inputs: tuple[torch.Tensor, ...], call: Callable[..., Given]
) -> None:
    decode_job(job_of(called, *inputs, call=call), blobs={})


def test_sizes_that_fit_each_other_in_this_call_and_not_in_others() -> None:
    def model(vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return aten._weight_norm_interface(vectors, lengths, 0)[0]  # type: ignore[no-any-return]

    given = torch.ones(8, 4), torch.ones(8, 1)
    for tensor in given:
        torch._dynamo.mark_dynamic(tensor, 0)
    job = capture(model, *given).encode().job
    decode_job(job, blobs={})
    if len(job.symbols) == 1:
        # Dynamo has put a guard on it: they are one symbol.
        job.symbols.append(job.symbols[0])
        job.hints.append(job.hints[0])
        job.inputs[1].tensor.shape[0].expression.symbol = 1
    guards = decode_job(job, blobs={}).symbolic.guards()
    assert not put_guards(guards, [8, 2])  # type: ignore[list-item]


def test_sizes_that_depend_on_elements_fit_nothing() -> None:
    def chosen(vectors: torch.fx.Node, lengths: torch.fx.Node) -> Given:
        graph = vectors.graph
        first = graph.call_function(aten.select.int, (vectors, 1, 0))
        mask = graph.call_function(aten.gt.Scalar, (first, 0))
        return (graph.call_function(aten.index.Tensor, (vectors, [mask])), lengths, 0), {}

    job = job_of(aten._weight_norm_interface.default, torch.ones(8, 4), torch.ones(8, 1), call=chosen)
    with pytest.raises(InvalidRequest, match="whether its arguments fit each other depends on elements"):
        decode_job(job, blobs={})


def test_targets_of_ctc_loss_are_believed() -> None:
    given = torch.ones(10, 2, 5), torch.ones(2, 4, dtype=torch.long)
    with pytest.raises(Bypass, match="ctc_loss, which the farm does not take"):
        job_of(torch.nn.functional.ctc_loss, *given, call=positional((10, 10), (4, 4)))


def test_a_step_of_vmap_is_not_called_by_graphs() -> None:
    # Its number of dimensions is believed: a child that decoded the request crashed.
    with pytest.raises(Bypass, match="_new_zeros_with_same_feature_meta"):
        job_of(
            aten._new_zeros_with_same_feature_meta.default,
            FEW,
            MANY,
            call=lambda *nodes: (nodes, {"self_num_batch_dims": 64}),
        )


def test_an_encoder_layer_without_heads() -> None:
    def encoder(x: object, mixed: object, bias: object, whole: object, one: object) -> Given:
        first = (x, 4, 0, mixed, bias, whole, one, False, False, 1e-5)
        return (*first, one, one, one, one, whole, one, whole, one), {}

    given = (torch.ones(2, 5, 4), torch.ones(12, 4), torch.ones(12), torch.ones(4, 4), torch.ones(4))
    job = job_of(aten._transformer_encoder_layer_fwd.default, *given, call=encoder)
    with pytest.raises(InvalidRequest, match="it has 0 heads"):
        decode_job(job, blobs={})


@pytest.mark.parametrize("called", [torch.lstm, aten.lstm, aten.lstm.input])
@pytest.mark.parametrize("wants_gradients", [False, True])
@pytest.mark.parametrize(
    ("place", "sizes"),
    [(None, ()), (0, (1, 1, 64)), (1, (1, 1, 64)), (2, (4, 2)), (3, (4, 2)), (4, (1,)), (5, (2,)), (5, (1, 256))],
)
def test_weights_and_states_that_do_not_fit_an_input(
    called: object, place: int | None, sizes: tuple[int, ...], *, wants_gradients: bool
) -> None:
    given = [torch.ones(sizes if number == place else fitting) for number, fitting in enumerate(SIZES)]
    x = torch.ones(5, 3, 10, requires_grad=wants_gradients)
    job = job_of(called, x, *given, call=recurrence)
    if place is None:
        decode_job(job, blobs={})
        return
    with pytest.raises(InvalidRequest, match=r"lstm.*its weights are"):
        decode_job(job, blobs={})


@pytest.mark.parametrize("called", [torch.lstm, aten.lstm, aten.lstm.input])
@pytest.mark.parametrize(
    ("place", "value", "objection"),
    [
        (1, [1, 2], "no tensors"),
        (2, 3, "no tensors"),
        # Were the weights of more written out, they would take all memory that a task may have.
        (4, 2**20, "its weights are 4, and it has 1048576 layers"),
        (None, None, "too few arguments"),
    ],
)
def test_recurrences_of_what_is_none(called: object, place: int | None, value: object, objection: str) -> None:
    def call(*nodes: object) -> Given:
        given = list(recurrence(*nodes)[0])
        if place is None:
            return tuple(given[:2]), {}
        given[place] = value
        return tuple(given), {}

    job = job_of(called, torch.ones(5, 3, 10), *map(torch.ones, SIZES), call=call)
    with pytest.raises(InvalidRequest, match=rf"lstm.*{objection}"):
        decode_job(job, blobs={})


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2}, {"bias": False}, {"batch_first": True}],
)
def test_recurrent_networks_travel(options: dict[str, bool | int]) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        encoded = capture(torch.nn.LSTM(10, 64, **options), torch.ones(5, 3, 10)).encode()  # type: ignore[arg-type]
    decode_job(encoded.job, blobs=encoded.blobs)


def test_a_number_that_is_computed_is_no_dtype() -> None:
    job = capture(torch.relu, FEW).encode().job
    job.graph.nodes[1].call.CopyFrom(
        Call(
            kind=PYTHON_FUNCTION,
            target="builtins.getattr",
            args=[Value(node=0), Value(text="nbytes")],
        )
    )
    call = Call(kind=OPERATOR_OVERLOAD, target="aten::to.dtype", args=[Value(node=0), Value(node=1)])
    job.graph.nodes.insert(2, Node(call=call))
    job.graph.nodes[3].output.values[0].node = 2
    with pytest.raises(InvalidRequest, match="dtype is a ScalarType"):
        decode_job(job, blobs={})


def test_a_literal_number_is_no_dtype_on_either_side() -> None:
    with pytest.raises(Bypass, match="dtype is a ScalarType, not 6"):
        job_of(aten.to.dtype, FEW, call=positional(6))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"), IMAGE),
        (lambda x: torch.nn.functional.interpolate(x, size=(5, 3)), IMAGE),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=0.3, mode="bicubic", antialias=True), IMAGE),
        (torch.nn.BatchNorm2d(3), IMAGE),
        (torch.nn.BatchNorm2d(3).eval(), IMAGE),
        (torch.nn.InstanceNorm2d(3, track_running_stats=True, affine=True), IMAGE),
        (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 5)), torch.ones(2, 4)),
    ],
)
def test_what_functions_make_of_their_arguments_travels(model: Callable[..., object], given: torch.Tensor) -> None:
    encoded = capture(model, given).encode()
    decode_job(encoded.job, blobs=encoded.blobs)


def test_steps_of_optimizers_travel() -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor, kept: torch.Tensor, steps: torch.Tensor) -> None:
        torch._fused_adam_([weight], [gradient], [kept], [kept.clone()], [], [steps], **ADAM)  # type: ignore[attr-defined]
        torch._fused_sgd_(  # type: ignore[attr-defined]
            [weight, kept],
            [gradient, weight],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=0.1,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
        )

    given = [torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 4), torch.ones(())]
    decode_job(capture(step, *given).encode().job, blobs={})


@pytest.mark.parametrize("kind", [OPERATOR_OVERLOAD, OPERATOR_PACKET, TORCH_FUNCTION])
def test_upsampling_is_told_a_size_or_a_scale(kind: TargetKind.ValueType) -> None:
    name = "torch._C._nn.upsample_nearest2d" if kind == TORCH_FUNCTION else "aten::upsample_nearest2d"
    job = capture(torch.relu, IMAGE).encode().job
    size = Value(list=Sequence(items=[Value(integer=16), Value(integer=16)]))
    call = Call(kind=kind, target=name, args=[Value(node=0), size, Value(real=0.001), Value(real=2.0)])
    job.graph.nodes[1].call.CopyFrom(call)
    with pytest.raises(InvalidRequest, match="upsample_nearest2d"):
        decode_job(job, blobs={})


@pytest.mark.parametrize(
    "name", ["aten::_upsample_bilinear2d_aa", "aten::upsample_bicubic2d", "aten::upsample_nearest2d"]
)
def test_a_boolean_is_a_scale(name: str) -> None:
    """As torch has it: what is not aligned corners."""
    job = capture(torch.relu, IMAGE).encode().job
    size, corners = Value(list=Sequence(items=[Value(integer=16), Value(integer=2**20)])), [Value(boolean=False)]
    scales = [Value(boolean=True), Value(boolean=True)]
    args = [Value(node=0), size, *([] if "nearest" in name else corners), *scales]
    job.graph.nodes[1].call.CopyFrom(Call(kind=OPERATOR_PACKET, target=name, args=args))
    with pytest.raises(InvalidRequest, match="may contradict each other"):
        decode_job(job, blobs={})


@pytest.mark.parametrize("count", [Value(integer=2**40), Value(node=0), Value(boolean=True)])
def test_combinations_are_of_few_elements_each(count: Value) -> None:
    job = capture(torch.relu, MANY).encode().job
    call = Call(kind=TORCH_FUNCTION, target="torch.combinations", args=[Value(node=0), count])
    job.graph.nodes[1].call.CopyFrom(call)
    with pytest.raises(InvalidRequest, match="combinations are of at most"):
        decode_job(job, blobs={})


@pytest.mark.parametrize(
    ("kind", "name"),
    [(OPERATOR_OVERLOAD, "aten::linalg_matrix_power"), (OPERATOR_PACKET, "aten::matrix_power"),
     (TORCH_FUNCTION, "torch.matrix_power"), (TENSOR_METHOD, "matrix_power")],
)  # fmt: skip
def test_the_least_power_of_a_matrix(kind: TargetKind.ValueType, name: str) -> None:
    job = capture(torch.relu, torch.eye(3)).encode().job
    # Torch would never come to an end.
    job.graph.nodes[1].call.CopyFrom(Call(kind=kind, target=name, args=[Value(node=0), Value(integer=-(2**63))]))
    with pytest.raises(InvalidRequest, match="it has no power -9223372036854775808"):
        decode_job(job, blobs={})
    # Nor where the graph computes it.
    del job.graph.nodes[1:]
    job.graph.nodes.add().call.CopyFrom(
        Call(kind=PYTHON_FUNCTION, target="operator.sub", args=[Value(integer=-(2**62)), Value(integer=2**62)])
    )
    job.graph.nodes.add().call.CopyFrom(Call(kind=kind, target=name, args=[Value(node=0), Value(node=1)]))
    job.graph.nodes.add().output.values.add(node=2)
    with pytest.raises(InvalidRequest, match="it has no power -9223372036854775808"):
        decode_job(job, blobs={})


TABLE, IDS, OFFSETS = torch.ones(10, 3), torch.zeros(6, dtype=torch.int64), torch.tensor([0, 2, 4])


def bags(offsets: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda ids, given: torch.nn.functional.embedding_bag(ids, TABLE, offsets(given))


@pytest.mark.parametrize(
    "model",
    [
        bags(lambda given: given),
        bags(lambda given: given.view(-1)[:2]),
        lambda ids, given: torch.nn.functional.embedding_bag(ids.view(2, 3), TABLE) + given.sum(),
        lambda ids, given: torch.embedding_bag(TABLE, ids, torch.arange(0, 6, 2))[0] + given.sum(),
        lambda ids, given: torch.embedding_bag(TABLE, ids.view(6, 1).expand(6, 2)[:, 0], given)[0],
        lambda ids, given: torch.embedding_bag(TABLE, ids[:1].expand(6), given)[0],
    ],
)
def test_bags_whose_offsets_are_given_or_count_up(model: Callable[..., object]) -> None:
    encoded = capture(model, IDS, OFFSETS).encode()
    decode_job(encoded.job, blobs=encoded.blobs)


@pytest.mark.parametrize("offsets", [lambda given: given * 1, lambda given: given.cumsum(0), lambda given: given[::2]])
def test_offsets_that_are_computed_stay_in_the_pod(offsets: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def bag(ids: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return torch.embedding_bag(TABLE, ids, offsets(given))[0]

    with pytest.raises(Bypass, match="neither an input of the graph nor count up") as caught:
        capture(bag, IDS, OFFSETS).encode()
    assert caught.value.reason == "computed_offsets"


def test_bags_whose_last_offset_says_where_they_end_are_sent_as_sums() -> None:
    def model(ids: torch.Tensor, given: torch.Tensor, mode: str, *, by_frequency: bool = False) -> torch.Tensor:
        options: dict[str, Any] = {"mode": mode, "scale_grad_by_freq": by_frequency, "include_last_offset": True}
        return torch.nn.functional.embedding_bag(ids, TABLE, given, **options)

    with pytest.raises(Bypass, match="where its last bag ends"):
        capture(partial(model, by_frequency=True), IDS, OFFSETS, "sum").encode()
    # As sums of rows, or the largest of them, which believe no offset.
    for mode in ("sum", "max"):
        encoded = capture(model, IDS, OFFSETS, mode).encode()
        decode_job(encoded.job, blobs=encoded.blobs)


def test_bags_whose_last_offset_says_where_they_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "find_computed", lambda *_: None)
    job = job_of(aten.embedding_bag.default, *BAGS, call=positional(False, 0, False, None, True))
    with pytest.raises(InvalidRequest, match="its last offset says where its last bag ends"):
        decode_job(job, blobs={})


def bags_with(change: Callable[[Graph, Node, Node], Node]) -> Job:
    """A request that no client makes: its offsets are what `change` makes of the inputs."""
    graph = Graph()
    ids, given = graph.placeholder("ids"), graph.placeholder("given")
    table = graph.call_function(torch.ones, (10, 3))
    bag = graph.call_function(torch.embedding_bag, (table, ids, change(graph, ids, given)))
    graph.output((graph.call_function(operator.getitem, (bag, 0)),))
    module = GraphModule(torch.nn.Module(), graph)
    return encode_job(module, [IDS, OFFSETS], options={}, environment=fixed_environment).job


def written(graph: Graph, ids: Node, given: Node) -> Node:
    graph.call_method("mul_", (given, 10**6))
    return given


def every_other(graph: Graph, ids: Node, given: Node) -> Node:
    return graph.call_method("squeeze", (graph.call_method("unfold", (given, 0, 1, 2)), 1))


def counted_within(graph: Graph, ids: Node, given: Node) -> Node:
    numbers = graph.call_function(torch.add, (given, 10**6))
    part = graph.call_method("narrow", (numbers, 0, 0, 1))
    graph.call_function(torch.arange, (1,), {"out": part})
    return numbers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph, ids, given: given, ""),
        (lambda graph, ids, given: graph.call_method("mul", (given, 10**6)), "its offsets are computed"),
        (lambda graph, ids, given: graph.call_method("view", (given, torch.int32)), "its offsets are computed"),
        (lambda graph, ids, given: graph.call_function(torch.tensor, ([0, 2**40, 3],)), "its offsets are computed"),
        (lambda graph, ids, given: graph.call_function(torch.arange, (0, -9, -3)), "its offsets are computed"),
        (lambda graph, ids, given: graph.call_function(torch.arange, (0, 2**33, 2**31)), "its offsets are computed"),
        (written, "writes to offsets of embedding_bag"),
        # What the farm makes up for an input depends on what else takes it, and so its every other element.
        (every_other, "its offsets are computed"),
        (counted_within, "its offsets are computed"),
    ],
)
def test_offsets_that_a_request_computes_are_refused(change: Callable[[Graph, Node, Node], Node], message: str) -> None:
    job = bags_with(change)
    if not message:
        decode_job(job, blobs={})
        return
    with pytest.raises(InvalidRequest, match=message):
        decode_job(job, blobs={})


def bag_of(graph: Graph, ids: Node, offsets: Node) -> Node:
    table = graph.call_function(torch.ones, (10, 3))
    return graph.call_function(torch.embedding_bag, (table, ids, offsets))


def repeated(graph: Graph, ids: Node, repeats: Node) -> Node:
    return graph.call_function(torch.repeat_interleave, (ids, repeats), {"output_size": 6})


@pytest.mark.parametrize(
    ("call", "numbers", "message"),
    [
        (bag_of, torch.tensor([0, 2**40, 3]), "its offsets are computed"),
        # Their sum is 6 in 64 bits.
        (repeated, torch.tensor([2**62, 2**62, 2**62, 2**62, 5, 1]), "its repeats are computed"),
    ],
)
def test_numbers_that_torch_believes_are_not_constants_of_a_request(
    call: Callable[[Graph, Node, Node], Node], numbers: torch.Tensor, message: str
) -> None:
    root = torch.nn.Module()
    root.register_buffer("numbers", numbers)
    graph = Graph()
    ids, given, held = graph.placeholder("ids"), graph.placeholder("given"), graph.get_attr("numbers")
    kept = graph.call_function(torch.add, (held, 1))
    result = call(graph, ids, given)
    graph.output((result, kept))
    number = list(graph.nodes).index(result)
    inputs = [IDS, torch.ones(len(numbers), dtype=torch.int64)]
    encoded = encode_job(GraphModule(root, graph), inputs, options={}, environment=fixed_environment)
    decode_job(encoded.job, blobs=encoded.blobs)
    # What no client says: the numbers are those that the request holds.
    (argument,) = (each for each in encoded.job.graph.nodes[number].call.args if each == Value(node=1))
    argument.node = 2
    with pytest.raises(InvalidRequest, match=message):
        decode_job(encoded.job, blobs=encoded.blobs)


def test_repeats_that_are_given_travel_and_a_computed_one_for_all_stays_in_the_pod() -> None:
    def repeat(given: torch.Tensor) -> torch.Tensor:
        return torch.arange(3).repeat_interleave(given, output_size=6)

    encoded = capture(repeat, OFFSETS).encode()
    decode_job(encoded.job, blobs=encoded.blobs)
    with pytest.raises(Bypass, match="its repeats are computed"):
        capture(lambda given: repeat((given * 1)[1:2]), OFFSETS).encode()
