"""Synthetic inputs suit the graph that they are for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo import mark_dynamic
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker import compile as compiling
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.fillers import takes_zeros
from compilefarm.worker.synthetic import are_refused, inputs_of
from tests.worker.inductor import checked_compile
from tests.worker.verifying import checked, encoded_of

_IDS = torch.zeros(6, dtype=torch.int64)
_FOUR = torch.zeros(4, dtype=torch.bool)
_EIGHT = torch.tensor([3, 0, 1, 2, 1, 1])
_ONES = torch.ones(6, dtype=torch.int64)


def _inputs(encoded: EncodedJob) -> list[Any]:
    decoded = decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())
    return inputs_of(encoded.job, decoded, first_seed=1)()


def _written(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache[slots] = rows
    return cache.clone()


def _packed(padded: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """For each of six places the row that it belongs to, as batches of rows without padding have it."""
    return padded[torch.searchsorted(offsets, torch.arange(6), right=True) - 1]


def _distinct(found: torch.Tensor) -> bool:
    return len(found.unique()) == found.numel()


def _is_definite(found: torch.Tensor) -> bool:
    return bool((found == found.mH).all()) and bool((torch.linalg.eigvalsh(found) > 0).all())


def _positive(found: torch.Tensor) -> bool:
    return bool((found > 0).all())


@pytest.mark.parametrize(
    ("model", "inputs", "number", "suits"),
    [
        # Zeros would end the process.
        (lambda x, y: x // y, (_IDS, _ONES), 1, lambda y: (y > 0).all()),
        (lambda x, y: torch.remainder(x, y.long()), (_IDS, _ONES.int()), 0, lambda y: (y > 0).all()),
        (lambda x, y: x / y, (torch.rand(3, 4), torch.rand(3, 4)), 1, lambda y: y.abs().min() >= 0.5),
        (F.embedding, (_IDS, torch.rand(9, 4)), 0, lambda ids: 0 <= ids.min() < ids.max() < 9),
        (lambda ids, x: x[ids.view(2, 3)], (_IDS, torch.rand(9, 4)), 0, lambda ids: 0 <= ids.min() < ids.max() < 9),
        (lambda x, ids: x[:, ids], (torch.rand(3, 9), _IDS), 1, lambda ids: 2 < ids.max() < 9),
        (lambda x, ids: x.gather(1, ids.view(2, 3)), (torch.rand(2, 9), _IDS), 1, lambda ids: 0 < ids.max() < 9),
        (_written, (torch.rand(9, 4), _IDS, torch.rand(6, 4)), 1, _distinct),
        (lambda x, i, y: x.index_copy(0, i, y), (torch.rand(9, 4), _IDS, torch.rand(6, 4)), 1, _distinct),
        (lambda x, i, y: x.scatter(0, i, y), (torch.rand(9), _IDS, torch.rand(6)), 1, _distinct),
        (F.binary_cross_entropy, (torch.rand(4, 5), torch.rand(4, 5)), 0, lambda p: 0 < p.min() < p.max() < 1),
        (torch.bernoulli, (torch.rand(4, 5),), 0, lambda p: 0 < p.min() < p.max() < 1),
        (lambda x: x.log(), (torch.rand(4, 5),), 0, lambda x: x.min() > 0),
        (F.cross_entropy, (torch.rand(6, 5), _IDS), 1, lambda ids: 0 < ids.max() < 5),
        (lambda ids: F.one_hot(ids, 7), (_IDS,), 0, lambda ids: 0 < ids.max() < 7),
        (lambda x, i: F.max_unpool2d(x, i, 2), (torch.rand(2, 3, 4, 5), torch.zeros(2, 3, 4, 5).long()), 1,
         lambda i: all(_distinct(plane) for plane in i.flatten(0, 1)) and 0 <= i.min() < i.max() < 80),
        (torch.linalg.cholesky, (torch.eye(3).repeat(2, 1, 1),), 0, _is_definite),
        (torch.linalg.cholesky_ex, (torch.eye(300, dtype=torch.complex64),), 0, _is_definite),
        (torch.searchsorted, (torch.rand(6), torch.rand(3)), 0, lambda edges: (edges.diff() >= 0).all()),
        (_packed, (torch.rand(3, 4), torch.tensor([0, 1, 4, 6])), 0, lambda at: at[0] == 0 and at[2] < 6 == at[3]),
        (F.embedding_bag, (_IDS, torch.rand(9, 4), _IDS[:2]), 2, lambda at: at[0] == 0 and at[1] > 0),
        (lambda x, counts: x.repeat_interleave(counts, 0), (torch.rand(6, 4), _IDS), 1, _positive),
        (lambda counts: torch.repeat_interleave(counts) + 1, (_IDS,), 0, _positive),
        (lambda x, counts: torch.repeat_interleave(x, counts, 0, output_size=8), (torch.rand(6, 4), _EIGHT), 1,
         lambda counts: counts.sum() == 8),
        (lambda ids, x: x[torch.repeat_interleave(input=ids, repeats=2)], (_IDS, torch.rand(9, 4)), 0,
         lambda ids: ids.max() == 0),
        (lambda x, mask, y: x.masked_scatter(mask, y), (torch.rand(3, 9), torch.zeros(3, 9).bool(), torch.rand(7)), 1,
         lambda mask: mask.sum() == 7),
        (lambda x, mask, y: x.masked_scatter(mask.unsqueeze(1), y), (torch.rand(4, 9), _FOUR, torch.rand(20)),
         1, lambda mask: mask.sum() == 2),
        (lambda x, mask, y: x.masked_scatter(mask, y), (torch.rand(3, 9), torch.zeros(3, 9).bool(), torch.rand(3, 9)),
         1, lambda mask: mask.any(-1).all() and not mask.all(-1).any()),
        (lambda x, mask: x.masked_fill(mask, 0), (torch.rand(3, 9), torch.ones(3, 9).bool()), 1,
         lambda mask: mask.any(-1).all() and not mask.all(-1).any()),
    ],
)  # fmt: skip
def test_elements_are_such_that_the_graph_takes_them(
    model: Callable[..., Any], inputs: tuple[torch.Tensor, ...], number: int, suits: Callable[[torch.Tensor], bool]
) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        encoded = encoded_of(model, *inputs)
    assert suits(_inputs(encoded)[number])
    assert checked(encoded, lambda graph: graph).compared


def test_offsets_that_are_repeats_too_are_filled_as_offsets_or_with_zeros() -> None:
    """Kernels believe offsets: what would be right repeats could have one read what lies beside its indices."""

    def repeated_bags(ids: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        # Behind views through which nobody follows them.
        offsets = at[:2].unflatten(0, (2, 1)).mT.squeeze(0)
        return F.embedding_bag(ids, table, offsets).repeat_interleave(at[:2], 0, output_size=3)

    found = _inputs(encoded_of(repeated_bags, _IDS, torch.rand(9, 4), torch.tensor([0, 3])))
    (offsets,) = (each for each in found if each.shape == (2,))
    assert offsets.tolist() == [0, 0]


def test_repeats_whose_number_differs_from_call_to_call() -> None:
    def nested(x: torch.Tensor, repeats: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, torch.arange(repeats.numel()).repeat_interleave(repeats, 0))

    repeats = torch.tensor([5, 10, 15])
    mark_dynamic(repeats, 0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        encoded = encoded_of(nested, torch.randn(32, 4), repeats)
    assert checked_compile(encoded).compared


def test_rows_of_a_batch_end_where_its_elements_do_at_other_sizes_too() -> None:
    def packed(padded: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return padded[torch.searchsorted(offsets, torch.arange(len(values)), right=True) - 1] * values

    values = torch.rand(6, 4)
    mark_dynamic(values, 0)
    encoded = encoded_of(packed, torch.rand(3, 4), torch.tensor([0, 1, 4, 6]), values)
    decoded = decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())
    larger = Job()
    larger.CopyFrom(encoded.job)
    larger.hints[:] = [hint + 1 for hint in larger.hints]
    for job in (encoded.job, larger):
        tensors = [each for each in inputs_of(job, decoded, first_seed=1)() if isinstance(each, torch.Tensor)]
        (offsets,) = (each for each in tensors if each.dim() == 1)
        assert {int(offsets[-1]), 3} == {len(each) for each in tensors if each.dim() == 2}


def _begun(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Every row begins with what its mask leaves, as of a conditional random field (pytorch-crf)."""
    torch._assert_async(mask[:, 0].all(), "the first of each row is masked")
    return torch.where(mask, x, 0.0).sum(1)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (_packed, (torch.rand(3, 4), torch.tensor([0, 1, 4, 6]))),
        (F.embedding, (_IDS, torch.rand(9, 4))),
        (_begun, (torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool))),
    ],
)
def test_what_takes_no_zeros_is_told(model: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    """Torch tunes kernels for GPUs on zeros, where an assertion is the end of a process."""
    encoded = encoded_of(model, *inputs)
    decoded = decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())
    zeros = [each if each.is_floating_point() else torch.zeros_like(each) for each in _inputs(encoded)]
    refused = pytest.raises((IndexError, RuntimeError), match=r"out of bounds|assertion")
    with nullcontext() if takes_zeros(decoded.graph_module) else refused:
        decoded.graph_module(*zeros)


def test_a_program_that_writes_equal_places_in_another_order_is_no_accident() -> None:
    """Where no two places are equal the order of writes shows in nothing."""
    encoded = encoded_of(_written, torch.rand(9, 4), _IDS, torch.rand(6, 4))

    def backwards(_: Any) -> Callable[..., Any]:
        return lambda cache, slots, rows: [_written(cache, slots.flip(0), rows.flip(0))]

    assert checked(encoded, backwards).compared


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return flex_attention(q, k, v, block_mask=mask)


def test_flexible_attention_leaves_all_blocks_to_its_mask() -> None:
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 256, 256, device="cpu")
    q, k, v = (torch.rand(1, 2, 256, 16) for _ in range(3))
    encoded = encoded_of(_windowed, q, k, v, mask)
    given = _inputs(encoded)
    counts = [each for each in given if isinstance(each, torch.Tensor) and each.shape == (1, 1, 2)]
    assert sorted(int(each.max()) for each in counts) == [0, 0, 2, 2]
    assert checked(encoded, lambda graph: graph).compared


@pytest.mark.parametrize("error", [RuntimeError, ValueError, AssertionError])
def test_what_eager_takes_the_artifact_has_to_take(error: type[Exception]) -> None:
    encoded = encoded_of(torch.sin, torch.rand(3))

    def broken(*_: Any) -> Any:
        raise error("no")

    with pytest.raises(error):
        checked(encoded, lambda _: broken)


def test_a_wrong_index_is_found() -> None:
    encoded = encoded_of(lambda x, ids: x[ids], torch.rand(9, 4), _IDS)
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        checked(encoded, lambda _: lambda x, ids: [x[(ids - 1).clamp(0)]])


def _on_gpu(decoded: DecodedJob) -> DecodedJob:
    """The same as if its inputs were on a GPU."""
    inputs: list[Any] = [mock.Mock(spec=torch.Tensor, device=torch.device("cuda")) for _ in decoded.inputs]
    return replace(decoded, inputs=inputs)


@pytest.fixture
def lost_gpu(monkeypatch: pytest.MonkeyPatch) -> Exception:
    """A GPU that computes nothing any more, by what it says."""
    error = RuntimeError("CUDA error: device-side assert triggered")
    monkeypatch.setattr(torch.cuda, "synchronize", mock.Mock(side_effect=error))
    return error


def _decoded(model: Callable[..., Any], *inputs: Any) -> DecodedJob:
    encoded = encoded_of(model, *inputs)
    return decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())


def test_eager_is_asked_on_a_gpu_that_still_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    decoded, error = _on_gpu(_decoded(torch.sin, torch.rand(3))), torch.linalg.LinAlgError("not positive-definite")
    decoded.graph_module.forward = mock.Mock(side_effect=error)
    assert are_refused(lambda: [torch.rand(3)], decoded, error=error)
    decoded.graph_module.forward = mock.Mock()
    assert not are_refused(lambda: [torch.rand(3)], decoded, error=error)


def test_eager_is_not_asked_on_a_gpu_where_nothing_runs_any_more(lost_gpu: Exception) -> None:
    decoded = _on_gpu(_decoded(torch.sin, torch.rand(3)))
    decoded.graph_module.forward = mock.Mock(side_effect=AssertionError)
    # Inputs cannot be made there, either.
    assert not are_refused(mock.Mock(side_effect=lost_gpu), decoded, error=lost_gpu)


def test_an_assertion_on_a_gpu_ends_the_tuning_and_not_the_compile(lost_gpu: Exception) -> None:
    encoded = encoded_of(lambda x, ids: x[ids] + x[ids + 1], torch.rand(9, 4), _IDS)
    decoded = _on_gpu(decode(encoded.job, blobs=encoded.blobs, admitted=Admitted()))
    program = mock.Mock(side_effect=lost_gpu)
    compiling._tune(program, decoded, encoded.job)
    assert program.call_count == 1
    with pytest.raises(RuntimeError, match="illegal memory access"):
        compiling._tune(mock.Mock(side_effect=RuntimeError("illegal memory access")), decoded, encoded.job)


def _convolved(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, kernel, padding=1)


def _convolved_back(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose2d(x, kernel, None, 1, 1, 0, 4)


def _convolved_any_way(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    one, none = [1, 1], [0, 0]
    result: torch.Tensor = torch.ops.aten.convolution(x, kernel, None, one, one, one, True, none, 4)
    return result


def _convolved_in_groups(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, kernel, padding=1, groups=4)


@pytest.mark.parametrize(
    ("step", "shape"),
    [
        (_convolved, (64, 64, 3, 3)),
        (_convolved_in_groups, (64, 16, 3, 3)),
        (_convolved_back, (64, 16, 3, 3)),
        (_convolved_any_way, (64, 16, 3, 3)),
    ],
    ids=["whole", "groups", "transposed", "any way"],
)
def test_many_convolutions_keep_magnitudes(step: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    def model(x: torch.Tensor, *kernels: torch.Tensor) -> torch.Tensor:
        for kernel in kernels:
            x = step(x, kernel)
        return x

    # Filled as operands of products are, kernels of three by three would make each result 14 times as large.
    encoded = encoded_of(model, torch.rand(1, 64, 8, 8), *(torch.rand(shape) for _ in range(20)))
    x, *kernels = _inputs(encoded)
    share = float(model(x, *kernels).std() / x.std())
    assert 1e-2 < share < 1e2
