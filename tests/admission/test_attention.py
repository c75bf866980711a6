"""Fused attention, forward and backward, as graphs of plain tensors name it: what fits is taken, and nothing else.

Tensors on a GPU are fake ones, of which no kernel knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.operator_guard import guarding_operators

aten: Any = torch.ops.aten
Arguments = dict[str, Any]
Spoil = Callable[[Arguments], Mapping[str, Any]]

_ON_GPU = ("cudnn", "efficient", "flash")
_KINDS = (*_ON_GPU, "flash_for_cpu")
# Of batches, lengths, elements of a head, and heads.
_SCATTERED = {"query": (2, 5, 8, 4), "key": (2, 6, 8, 4), "value": (2, 6, 8, 4)}


def _operator(kind: str, *, backward: bool) -> Any:
    on_cpu = kind.removeprefix("flash") if kind == "flash_for_cpu" else ""
    name = f"_scaled_dot_product_{kind.removesuffix(on_cpu)}_attention{on_cpu}"
    return getattr(aten, f"{name}_backward" if backward else name).default


def _tensor(kind: str, *shape: int, **given: Any) -> torch.Tensor:
    return torch.empty(*shape, device="cpu" if kind == "flash_for_cpu" else "cuda", **given)


def _forward(kind: str) -> Arguments:
    heads = [_tensor(kind, 2, length, 4, 8, dtype=torch.bfloat16).transpose(1, 2) for length in (5, 6, 6)]
    given: Arguments = dict(zip(("query", "key", "value"), heads, strict=True))
    if kind in ("cudnn", "efficient"):
        given |= {"attn_bias": None, "compute_log_sumexp": True}
    return {**given, "dropout_p": 0.0, "is_causal": True, "scale": 0.5}


def _backward(kind: str) -> Arguments:
    forward = _forward(kind)
    out, sums, *rest = _operator(kind, backward=False)(**forward)
    gradient = "grad_out_" if kind == "efficient" else "grad_out"
    heads = {name: forward[name] for name in ("query", "key", "value")}
    given = {gradient: torch.empty_like(out), **heads, "out": out, "logsumexp": sums}
    if kind == "efficient":
        given |= {"attn_bias": None, "philox_seed": rest[0], "philox_offset": rest[1]}
        given |= {"grad_input_mask": [True, True, True, False]}
    elif kind in ("cudnn", "flash"):
        given |= dict(zip(("cum_seq_q", "cum_seq_k", "max_q", "max_k"), rest[:4], strict=True))
        given |= dict(zip(("philox_seed", "philox_offset"), rest[4:6], strict=True))
        given |= {"attn_bias": None} if kind == "cudnn" else {}
    return {**given, "dropout_p": 0.0, "is_causal": True, "scale": 0.5}


def _job(kind: str, *, backward: bool, spoil: Spoil = lambda _: {}) -> Job:
    with FakeTensorMode():
        given = _backward(kind) if backward else _forward(kind)
        given |= spoil(given)
    operator = _operator(kind, backward=backward)
    graph = Graph()
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    called = {**given, **{name: graph.placeholder(name) for name in tensors}}
    by_place = [each.name for each in operator._schema.arguments if not each.kwarg_only]
    graph.call_function(
        operator,
        tuple(called[name] for name in by_place if name in called),
        {name: value for name, value in called.items() if name not in by_place},
    )
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    return encode_job(module, list(tensors.values()), options={}, environment=fixed_environment).job


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("backward", [False, True])
def test_what_a_model_computes_is_taken(kind: str, *, backward: bool) -> None:
    decode_job(_job(kind, backward=backward), blobs={})


@pytest.mark.parametrize("backward", [False, True])
def test_heads_of_queries_share_those_of_keys(*, backward: bool) -> None:
    def shared(given: Arguments) -> Mapping[str, Any]:
        return {name: given[name].new_empty(2, 2, 6, 8) for name in ("key", "value")}

    decode_job(_job("flash_for_cpu", backward=backward, spoil=shared), blobs={})


def _shape(name: str, *shape: int, **given: Any) -> Spoil:
    return lambda others: {name: others[name].new_empty(shape, **given)}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        _shape("key", 2, 4, 9, 8),
        _shape("value", 1, 4, 6, 8),
        _shape("query", 3, 4, 5, 8),
        _shape("query", 2, 3, 5, 8),
        _shape("query", 2, 4, 0, 8),
        _shape("key", 2, 4, 48),
        lambda others: {"query": others["query"].new_empty(1).expand(2, 4, 5, 8)},
    ],
    ids=["keys", "batch", "more batches", "heads", "no queries", "dimensions", "one element"],
)
def test_queries_keys_and_values_that_do_not_fit(kind: str, spoil: Spoil, *, backward: bool) -> None:
    with pytest.raises(InvalidRequest, match="_scaled_dot_product"):
        decode_job(_job(kind, backward=backward, spoil=spoil), blobs={})


@pytest.mark.parametrize("kind", _ON_GPU)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "spoil", [_shape("key", 2, 4, 6, 16), _shape("value", 2, 4, 6, 8, dtype=torch.float32)], ids=["width", "dtype"]
)
def test_widths_and_dtypes_that_do_not_fit(kind: str, spoil: Spoil, *, backward: bool) -> None:
    with pytest.raises(InvalidRequest, match="differ in width, in dtype"):
        decode_job(_job(kind, backward=backward, spoil=spoil), blobs={})


@pytest.mark.parametrize("kind", ["cudnn", "efficient"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_bias_of_another_shape(kind: str, *, backward: bool) -> None:
    for shape, fits in (((2, 4, 5, 6), True), ((2, 4, 5, 7), False), ((3, 4, 5, 6), False)):
        job = _job(
            kind, backward=backward, spoil=lambda given, shape=shape: {"attn_bias": given["key"].new_empty(shape)}
        )  # type: ignore[misc]
        if fits:
            decode_job(job, blobs={})
            continue
        with pytest.raises(InvalidRequest, match="its bias is"):
            decode_job(job, blobs={})


def _sums(kind: str) -> tuple[int, ...]:
    return {"cudnn": (2, 4, 5, 1), "efficient": (2, 4, 32)}.get(kind, (2, 4, 5))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "spoil_of",
    [
        lambda sums: _shape("logsumexp", 1, *sums[1:]),
        lambda sums: _shape("logsumexp", 2, 4, 3, *sums[3:]),
        lambda sums: _shape("logsumexp", 40),
        lambda sums: _shape("logsumexp", *sums, dtype=torch.bfloat16),
        lambda sums: lambda given: {"logsumexp": given["logsumexp"].new_empty(1).expand(1, *sums[1:])},
        lambda sums: _shape("out", 2, 4, 5, 4),
        lambda sums: _shape("out", 2, 4, 5, 8, dtype=torch.float32),
        lambda sums: lambda given: {"out": given["out"].new_empty(1).expand(2, 4, 4, 8)},
    ],
)
def test_what_no_forward_pass_has_made(kind: str, spoil_of: Callable[[tuple[int, ...]], Spoil]) -> None:
    with pytest.raises(InvalidRequest, match=r"not (what|those)|lie otherwise"):
        decode_job(_job(kind, backward=True, spoil=spoil_of(_sums(kind))), blobs={})


@pytest.mark.parametrize("kind", _ON_GPU)
def test_sums_and_results_that_lie_otherwise_in_memory(kind: str) -> None:
    sums = _sums(kind)

    def spoil(given: Arguments) -> Arguments:
        return {"logsumexp": given["logsumexp"].new_empty((*sums[1:3], sums[0], *sums[3:])).movedim(2, 0)}

    with pytest.raises(InvalidRequest, match="sums"):
        decode_job(_job(kind, backward=True, spoil=spoil), blobs={})


def test_a_result_whose_heads_lie_otherwise() -> None:
    """The kernel finds a row by the place of a head alone."""
    with pytest.raises(InvalidRequest, match="its result lie otherwise"):
        decode_job(_job("efficient", backward=True, spoil=_shape("out", 2, 4, 5, 8)), blobs={})


@pytest.mark.parametrize("kind", ["cudnn", "flash"])
def test_lengths_of_sequences_are_not_taken(kind: str) -> None:
    def spoil(given: Arguments) -> Arguments:
        return {name: given["query"].new_empty(3, dtype=torch.int32) for name in ("cum_seq_q", "cum_seq_k")}

    with pytest.raises(InvalidRequest, match="it is given lengths of sequences"):
        decode_job(_job(kind, backward=True, spoil=spoil), blobs={})


def test_lengths_that_are_stated_are_those_of_the_tensors() -> None:
    with pytest.raises(InvalidRequest, match="its lengths or its sums"):
        decode_job(_job("cudnn", backward=True, spoil=lambda _: {"max_q": 4096}), blobs={})


@pytest.mark.parametrize("kind", _ON_GPU)
@pytest.mark.parametrize("backward", [False, True])
def test_dropout_in_parts_stays_in_the_pod(kind: str, *, backward: bool) -> None:
    with pytest.raises(Bypass, match="attention with dropout is not taken in parts"):
        _job(kind, backward=backward, spoil=lambda _: {"dropout_p": 0.1})


def test_scales_of_quantized_attention_stay_in_the_pod() -> None:
    overload = getattr(aten._scaled_dot_product_flash_attention, "quantized", None)
    if overload is None:
        pytest.skip("this release has no such operator")
    graph = Graph()
    heads = [graph.placeholder(name) for name in "qkv"]
    graph.call_function(overload, (*heads, None, None, None))
    graph.output(())
    given = [torch.ones(1, 2, 4, 8) for _ in heads]
    with pytest.raises(Bypass, match="quantized, which the farm does not take"):
        encode_job(GraphModule(torch.nn.Module(), graph), given, options={}, environment=fixed_environment)


def test_dropout_as_a_model_says_it_travels() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    encoded = capture(model, torch.ones(1, 2, 4, 8)).encode()
    decode_job(encoded.job, blobs=encoded.blobs)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("backward", [False, True])
def test_heads_that_are_laid_out_while_the_graph_is_compiled(kind: str, *, backward: bool) -> None:
    """Inductor leaves heads to the gradient as it likes, and copies them for the kernel; a caller's lie as he says."""

    def scattered(given: Arguments) -> Arguments:
        return {name: given[name].new_empty(*_SCATTERED[name]).permute(0, 3, 1, 2) for name in _SCATTERED}

    with pytest.raises(InvalidRequest, match="elements of a head do not lie side by side"):
        decode_job(_job(kind, backward=backward, spoil=scattered), blobs={})

    def compile_with(spoil: Spoil) -> None:
        with FakeTensorMode(), guarding_operators(calls_views=False):
            given = _backward(kind) if backward else _forward(kind)
            _operator(kind, backward=backward)(**given | spoil(given))

    compile_with(scattered)
    # It takes those with gaps for heads that are in order.
    with pytest.raises(InvalidRequest, match="elements of a head do not lie side by side"):
        compile_with(lambda given: {"query": given["query"].new_empty(2, 5, 4, 16)[..., ::2].transpose(1, 2)})


def test_sums_that_are_laid_out_while_the_graph_is_compiled() -> None:
    """Inductor leaves them to cuDNN's gradient in the order of channels where a graph convolves, as SegFormer does; of
    sums with gaps, or that are one number again and again, nobody says where they end.
    """

    def compile_with(spoil: Spoil) -> None:
        with FakeTensorMode(), guarding_operators(calls_views=False):
            given = _backward("cudnn")
            _operator("cudnn", backward=True)(**given | spoil(given))

    def by_channels(given: Arguments) -> Arguments:
        return {"logsumexp": given["logsumexp"].to(memory_format=torch.channels_last)}

    with pytest.raises(InvalidRequest, match="its sums are not in the order of these queries"):
        decode_job(_job("cudnn", backward=True, spoil=by_channels), blobs={})
    compile_with(by_channels)
    for spoil in (
        lambda given: {"logsumexp": given["logsumexp"].new_empty(2, 4, 10, 1)[:, :, ::2]},
        lambda given: {"logsumexp": given["logsumexp"].new_empty(1).expand(2, 4, 5, 1)},
    ):
        with pytest.raises(InvalidRequest, match="its lengths or its sums are not those of these queries"):
            compile_with(spoil)
