"""Texts, numbers in the place of types, and steps within operators, in requests that nobody's client makes.

Each is refused before torch sees it: Inductor writes arguments into sources, and not all of them as it should.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, embedding_bag, gelu, grid_sample, interpolate, pad

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import arguments, targets
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import GraphRejected, decode_job
from compilefarm.graph.operators import find_operator, operators_of_torch
from compilefarm.graph.testing import capture
from compilefarm.v1.graph_pb2 import Call, NamedValue, TargetKind, Value
from compilefarm.v1.job_pb2 import Job

MARKERS = [
    '");system("touch owned");//',
    "');__import__('os').system('touch owned')#",
    '"""\nimport os\n"""',
    "{x}",
    "\\",
    "*/ touch();",
    "a\nb",
    "a\rb",
    "\0",
    "\x1b[2J",
    "\u2028",
    "-1.0f; touch()",
    "touch owned",
    "a" * 100_000,
]
X = torch.ones(4, 4)


def calls(job: Job) -> Iterator[Call]:
    yield from (node.call for node in job.graph.nodes if node.HasField("call"))


def call_of(job: Job, target: str) -> Call:
    return next(call for call in calls(job) if call.target == target)


def refusal(job: Job) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode(job, blobs={}, admitted=Admitted())
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def asserting(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "only what is above zero")
    return x + 1


def attending(x: torch.Tensor) -> torch.Tensor:
    heads = x.reshape(1, 1, 4, 4)
    attended: torch.Tensor = flex_attention(heads, heads, heads, scale=0.5)
    return attended


@functools.cache
def sample(model: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    return capture(model, X).encode().job.SerializeToString()


def call_alone(kind: int, target: str, *args: Value, **kwargs: Value) -> Job:
    job = Job.FromString(sample(torch.relu))
    named = [NamedValue(name=name, value=kwargs[name]) for name in sorted(kwargs)]
    job.graph.nodes[1].call.CopyFrom(Call(kind=kind, target=target, args=args, kwargs=named))  # type: ignore[arg-type]
    return job


def objection(kind: Any, name: str, *args: object, **kwargs: object) -> str | None:
    return targets.find_objection(kind, name=name, args=args, kwargs=kwargs) or arguments.find_objection(
        kind, name=name, args=args, kwargs=kwargs
    )


@pytest.mark.parametrize("marker", [*MARKERS, "only what is above zero", "compilefarm assertion", ""])
def test_messages_of_assertions_do_not_travel(marker: str) -> None:
    job = Job.FromString(sample(asserting))
    assert call_of(job, "torch._assert_async").args[1].text == "compilefarm assertion 0"
    assert b"above" not in job.SerializeToString()
    call_of(job, "torch._assert_async").args[1].text = marker
    refusal(job)


def test_messages_stay_in_the_pod_and_decide_no_key() -> None:
    def asserting_otherwise(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), 'what holds "quotes"\nand lines')
        return x + 1

    assert capture(asserting, X).encode().messages == ("only what is above zero",)
    other = capture(asserting_otherwise, X).encode()
    assert other.messages == ('what holds "quotes"\nand lines',)
    assert other.job.SerializeToString() == sample(asserting)


def test_libraries_call_their_own_reductions_by_name() -> None:
    kind = TargetKind.TARGET_KIND_LIBRARY_FUNCTION
    for reduction in ("rearrange", "repeat", "max"):
        assert objection(kind, "einops::reduce", 0, "b h -> h b", reduction) is None
        assert objection(kind, "einops::reduce", 0, "b h -> h b", reduction=reduction) is None
    assert "none that" in str(objection(kind, "einops::reduce", 0, "b h -> h b", reduction="rearranged"))


@pytest.mark.parametrize("marker", MARKERS)
def test_the_scale_of_flex_attention_is_a_finite_number(marker: str) -> None:
    for bad in (Value(text=marker), Value(real=float("inf")), Value(real=float("nan")), Value(node=0), Value()):
        job = Job.FromString(sample(attending))
        call_of(job, "flex_attention").args[5].CopyFrom(bad)
        refusal(job)


@pytest.mark.parametrize("marker", [*MARKERS, "FLOAT32_PRECISION", "SM_SCALE", "fwd_", "fwd_fwd_BLOCK_M"])
def test_options_of_flex_attention_are_known(marker: str) -> None:
    job = Job.FromString(sample(attending))
    options = call_of(job, "flex_attention").args[6].dictionary
    del options.entries[:]
    options.entries.add(name=marker, value=Value(integer=1))
    refusal(job)


@pytest.mark.parametrize("name", ["BACKEND", "BLOCK_M", "PRESCALE_QK", "fwd_num_warps"])
def test_options_of_flex_attention_are_numbers_and_booleans(name: str) -> None:
    for bad in (*(Value(text=marker) for marker in MARKERS), Value(real=1.5), Value(node=0), Value(integer=2**40)):
        job = Job.FromString(sample(attending))
        options = call_of(job, "flex_attention").args[6].dictionary
        del options.entries[:]
        options.entries.add(name=name, value=bad)
        refusal(job)


@pytest.mark.parametrize("name", ["fwd_BACKEND", "bwd_BACKEND"])
def test_no_text_of_an_option_becomes_a_name_in_a_kernel(name: str) -> None:
    job = Job.FromString(sample(attending))
    options = call_of(job, "flex_attention").args[6].dictionary
    options.entries.add(name=name, value=Value(text="TRITON"))
    options.entries.sort(key=lambda entry: entry.name)
    refusal(job)


def test_a_right_option_of_flex_attention_is_taken() -> None:
    job = Job.FromString(sample(attending))
    options = call_of(job, "flex_attention").args[6].dictionary
    options.entries.extend([NamedValue(name="fwd_BLOCK_M", value=Value(integer=64))])
    options.entries.sort(key=lambda entry: entry.name)
    decode_job(job, blobs={})


@pytest.mark.parametrize("marker", MARKERS)
def test_text_of_an_operator_is_a_word_that_it_knows(marker: str) -> None:
    gelu_with = call_alone(targets.OPERATOR_OVERLOAD, "aten::gelu", Value(node=0), approximate=Value(text=marker))
    assert "node 1" in refusal(gelu_with)
    decode_job(call_alone(4, "aten::gelu", Value(node=0), approximate=Value(text="tanh")), blobs={})


def test_no_operator_takes_a_marker() -> None:
    for name in sorted(operators_of_torch()):
        schema = find_operator(name, is_overload=True)._schema  # type: ignore[union-attr]
        for number, argument in enumerate(schema.arguments):
            for marker in MARKERS:
                if "einsum" in name and marker == "touch owned":
                    continue
                assert objection(3, name, **{argument.name: marker}), (name, argument.name, marker)
                assert objection(3, name, *[None] * number, marker), (name, number, marker)


@pytest.mark.parametrize("kind", [1, 2, 4, 5, 6])
def test_nothing_takes_a_marker(kind: Any) -> None:
    for name in sorted(targets.target_names()[kind]):
        # An equation for sums of products is letters and spaces.
        for marker in MARKERS if "einsum" not in name else MARKERS[:-2]:
            for args in ((marker,), (None, marker), (None, [marker]), (None, None, {"a": marker}), (None, {marker: 1})):
                assert objection(kind, name, *args), (name, args)
            for keyword in ("mode", "device", "message", "equation", marker):
                assert objection(kind, name, **{keyword: marker}), (name, keyword)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job, marker: job.graph.nodes[-1].output.values.add(text=marker),
        lambda job, marker: job.graph.nodes[1].call.args[0].list.items.add(text=marker),
        lambda job, marker: job.graph.nodes[1].call.args.add().slice.start.CopyFrom(Value(text=marker)),
        lambda job, marker: job.graph.nodes[1].call.args.add().dictionary.entries.add(name=marker).value.none,
        lambda job, marker: job.graph.nodes[1].call.args.add(dtype=marker),
        lambda job, marker: job.graph.nodes[1].call.args.add(layout=marker),
        lambda job, marker: job.graph.nodes[1].call.args.add(memory_format=marker),
        lambda job, marker: job.graph.nodes[1].call.args.add(big_integer=marker),
        lambda job, marker: (
            job.graph.nodes[1]
            .call.args.add()
            .device.CopyFrom(
                Value(device={"type": marker}).device  # type: ignore[arg-type]
            )
        ),
        lambda job, marker: job.graph.nodes[1].call.kwargs.add(name=marker, value=Value(integer=1)),
        lambda job, marker: setattr(job.graph.nodes[1].call, "target", marker),
        lambda job, marker: setattr(job.inputs[0].tensor, "dtype", marker),
        lambda job, marker: setattr(job.inputs[0].tensor.device, "type", marker),
    ],
)
def test_no_other_place_takes_a_marker(spoil: Callable[[Job, str], object]) -> None:
    for marker in MARKERS:
        job = Job.FromString(sample(torch.relu))
        spoil(job, marker)
        refusal(job)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        ("aten::_to_copy", (), {"dtype": Value(integer=999)}),
        ("aten::_to_copy", (), {"layout": Value(integer=77)}),
        ("aten::_to_copy", (), {"memory_format": Value(integer=55)}),
        ("aten::to.dtype", (Value(integer=999),), {}),
        ("aten::clone", (), {"memory_format": Value(integer=55)}),
        ("aten::sum", (), {"dtype": Value(integer=6)}),
        ("aten::sum.dim_IntList", (Value(dtype="float32"),), {}),
        ("aten::gelu", (), {"approximate": Value(integer=1)}),
        ("aten::relu", (Value(integer=1),), {}),
        ("aten::relu", (), {"no_such_argument": Value(integer=1)}),
    ],
)
def test_arguments_of_operators_are_of_their_schema(
    target: str, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> None:
    assert target in refusal(call_alone(3, target, Value(node=0), *args, **kwargs))


def test_an_overload_is_chosen_by_arguments_that_fit() -> None:
    refusal(call_alone(4, "aten::sum", Value(node=0), dtype=Value(integer=6)))
    decode_job(call_alone(4, "aten::sum", Value(node=0), dtype=Value(dtype="float64")), blobs={})


@pytest.mark.parametrize(
    "name",
    ["_unsafe_index", "_linalg_eigvals", "_cudnn_rnn", "_cummax_helper", "_nested_view_from_buffer", "_copy_from"],
)
def test_steps_within_operators_are_refused_by_name(name: str) -> None:
    assert name in refusal(call_alone(4, f"aten::{name}", Value(node=0)))
    assert name in refusal(call_alone(1, f"torch.{name}", Value(node=0)))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: gelu(x, approximate="tanh"),
        lambda x: interpolate(x[None, None], scale_factor=2, mode="bicubic"),
        lambda x: interpolate(x[None, None], size=(3, 3), mode="nearest-exact"),
        lambda x: grid_sample(
            x[None, None], torch.zeros(1, 2, 2, 2), mode="nearest", padding_mode="border", align_corners=True
        ),
        lambda x: pad(x[None, None], (1, 1, 1, 1), mode="reflect"),
        lambda x: embedding_bag(torch.zeros(2, 2, dtype=torch.int64), x, mode="max"),
        lambda x: cross_entropy(x, x.softmax(0), reduction="sum"),
        lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None], padding="same"),
        lambda x: torch.einsum("i j, jk -> ik", x, x),
        lambda x: torch.fft.fft2(x, norm="ortho").real,
        lambda x: torch.fft.rfft(x, norm="backward").abs(),
        lambda x: torch.div(x, 3, rounding_mode="floor"),
        lambda x: x.div(3, rounding_mode="trunc"),
        lambda x: torch.linalg.norm(x, "nuc") + x.norm("fro") + torch.norm(x, p="fro"),
        lambda x: torch.linalg.svd(x, driver=None)[1] + torch.linalg.eigvalsh(x, UPLO="U"),
        lambda x: torch.linalg.qr(x, mode="r")[1],
        lambda x: torch.meshgrid(x[0], x[1], indexing="xy")[0],
        lambda x: x.quantile(0.5, interpolation="midpoint") + torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
        lambda x: torch.searchsorted(x[0], x, side="right"),
        lambda x: x.scatter_reduce(0, torch.zeros(4, 4, dtype=torch.int64), x, reduce="amax"),
        lambda x: x.to("cpu") + torch.zeros(4, device="cpu") + x.new_ones(4, device="cpu"),
        lambda x: torch.stft(x[0], 4, pad_mode="reflect", return_complex=True).abs(),
        lambda x: torch.vmap(torch.sin, randomness="same")(x),
        lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
        attending,
    ],
)
def test_words_that_programs_use_travel(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    decode_job(capture(model, X).encode().job, blobs={})


def test_what_the_worker_would_refuse_is_a_bypass() -> None:
    def attending_everywhere(x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(1, 1, 4, 4)
        attended: torch.Tensor = flex_attention(heads, heads, heads, scale=float("inf"))
        return attended

    with pytest.raises(Bypass, match=r"flex_attention: argument 5 .*inf") as caught:
        capture(attending_everywhere, X).encode()
    assert caught.value.reason == "unknown_literal"


def test_regions_are_numbered() -> None:
    region = torch.compiler.nested_compile_region(lambda x: x.sin())
    job = capture(lambda x: region(region(x)), X).encode().job
    assert {call.args[1].text for call in calls(job) if call.target == "invoke_subgraph"} == {"compilefarm_region_0"}
    for marker in (*MARKERS, "subgraph_0", "compilefarm assertion 0"):
        call_of(job, "invoke_subgraph").args[1].text = marker
        refusal(job)


def test_torch_still_refuses_what_fits_the_schema_and_is_wrong() -> None:
    with pytest.raises(GraphRejected):
        decode_job(call_alone(3, "aten::transpose.int", Value(node=0), Value(integer=9), Value(integer=0)), blobs={})
