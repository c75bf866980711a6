"""Operators of libraries that believe values get such as they can take, or do not run.

torchvision's poolings read at the number of the image that each region begins with.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.operators import whole_packets
from compilefarm.graph.testing import capture
from compilefarm.torch_internals.operators import registered_names
from compilefarm.worker import compile as compiling
from compilefarm.worker.believed_values import OutsideOfTensor, refusing_values_outside
from compilefarm.worker.eager import Eager
from compilefarm.worker.synthetic import ATTEMPTS, find_refusal, inputs_of
from compilefarm.worker.verify import EagerRefuses, first_run
from tests.worker.verifying import encoded_of

ops = pytest.importorskip("torchvision.ops")

_FEATURES = torch.randn(3, 8, 16, 12)
_REGIONS = torch.tensor([[0.0, 1.0, 1.0, 4.0, 6.0]]).repeat(200, 1)
_POOLINGS = {
    "roi_align": functools.partial(ops.roi_align, output_size=3),
    "roi_pool": functools.partial(ops.roi_pool, output_size=2, spatial_scale=0.5),
    "ps_roi_align": functools.partial(ops.ps_roi_align, output_size=2),
    "ps_roi_pool": functools.partial(ops.ps_roi_pool, output_size=2),
}


def _decoded(encoded: EncodedJob) -> DecodedJob:
    operators = whole_packets(name for name in registered_names() if name.startswith("torchvision::"))
    return decode_job(encoded.job, blobs=encoded.blobs, operators=operators)


def _pooled(name: str, *, trains: bool = False) -> EncodedJob:
    features = _FEATURES.clone().requires_grad_(trains)
    return encoded_of(lambda x, regions: _POOLINGS[name](x, regions.float()), features, _REGIONS, trains=trains)


def _beyond(*, image: float) -> EncodedJob:
    """A graph that says itself which image, so that no choice of inputs can mend it."""

    def pooled(x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ops.roi_align(x, torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1), 3)
        return result

    with torch.no_grad():
        captured = capture(pooled, _FEATURES, _REGIONS[:, 1:].clone())
    (zeros,) = (node for node in captured.graph_module.graph.nodes if node.target is torch.zeros_like)
    zeros.target, zeros.args = torch.full_like, (*zeros.args, image)
    captured.graph_module.recompile()
    return captured.encode()


@pytest.mark.parametrize("name", _POOLINGS)
def test_regions_lie_in_images_that_there_are(name: str) -> None:
    encoded = _pooled(name)
    eager, results = first_run(_decoded(encoded), encoded.job)
    (regions,) = (given for given in eager.inputs() if isinstance(given, torch.Tensor) and given.shape[-1] == 5)
    assert regions[:, 0].trunc().unique().tolist() == [0.0, 1.0, 2.0]
    assert (regions[:, 3:] > regions[:, 1:3]).all()
    # They are boxes of some size, from which something comes.
    assert (results["output 0"].flatten(1) != 0).any(1).float().mean() > 0.5
    # Rounding does not move them to another image.
    for other in eager.perturbed():
        torch.testing.assert_close(other["output 0"], results["output 0"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["roi_align", "roi_pool"])
def test_gradients_are_taken_at_them(name: str) -> None:
    encoded = _pooled(name, trains=True)
    _, results = first_run(_decoded(encoded), encoded.job)
    (gradient,) = (value for result, value in results.items() if result.startswith("gradient"))
    assert all(image.any() for image in gradient)


@pytest.mark.parametrize("image", [3.0, -1.0, float("nan"), 1e30])
def test_a_graph_that_reads_beyond_its_images_is_not_run(image: float, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = _beyond(image=image)
    decoded = _decoded(encoded)
    with pytest.raises(EagerRefuses, match="a region lies in image"):
        first_run(decoded, encoded.job)
    ran: list[Any] = []
    monkeypatch.setattr(compiling, "_run_once", lambda *given: ran.append(given))
    compiling._tune(decoded.graph_module, decoded, encoded.job)
    assert ran == []


def test_gradients_for_images_that_there_are_not_are_not_written() -> None:
    program = _decoded(_pooled("roi_align")).graph_module
    backward = torch.ops.torchvision._roi_align_backward
    regions = _REGIONS[:2].clone()
    regions[1, 0] = 3
    with refusing_values_outside(program), pytest.raises(OutsideOfTensor, match="image 0 or 3 of 3"):
        backward(torch.ones(2, 8, 3, 3), regions, 1.0, 3, 3, 3, 8, 16, 12, -1, False)


@pytest.mark.parametrize("name", ["roi_align", "_roi_align_backward"])
@pytest.mark.parametrize(
    ("corner", "sampling", "message"),
    [
        (float("nan"), 2, "reaches from nan"),
        (float("inf"), 2, "to inf"),
        # As many samples as 32 bits do not count.
        (65536.0, -1, "to 65536"),
        (4.0, 65536, "196608 samples"),
    ],
)
def test_regions_are_of_a_size_that_kernels_count(name: str, corner: float, sampling: int, message: str) -> None:
    program = _decoded(_pooled("roi_align")).graph_module
    given = _FEATURES if name == "roi_align" else torch.ones(1, 8, 3, 3)
    sizes = () if name == "roi_align" else (3, 8, 16, 12)
    regions = torch.tensor([[0.0, 1.0, 1.0, corner, 4.0]])
    with refusing_values_outside(program), pytest.raises(OutsideOfTensor, match=message):
        getattr(torch.ops.torchvision, name)(given, regions, 1.0, 3, 3, *sizes, sampling, False)


@pytest.mark.parametrize(
    ("name", "channels", "sizes", "place"),
    [
        ("_roi_pool_backward", 8, (1.0, 2, 2, 3, 8, 16, 12), 10**6),
        ("_ps_roi_align_backward", 2, (1.0, 2, 2, 2, 3, 8, 16, 12), -1),
    ],
)
def test_gradients_are_written_where_there_is_something(
    name: str, channels: int, sizes: tuple[float, ...], place: int
) -> None:
    program, gradient = _decoded(_pooled("roi_align")).graph_module, torch.ones(1, channels, 2, 2)
    regions, chosen = torch.tensor([[0.0, 1.0, 1.0, 4.0, 4.0]]), torch.zeros(gradient.shape, dtype=torch.int32)
    backward = getattr(torch.ops.torchvision, name)
    with refusing_values_outside(program):
        backward(gradient, regions, chosen, *sizes)
        with pytest.raises(OutsideOfTensor, match="shape of its gradients"):
            backward(gradient, regions, chosen[:, :1], *sizes)
        with pytest.raises(OutsideOfTensor, match="not those of these regions"):
            backward(gradient[:, :, :1], regions, chosen, *sizes)
        chosen[0, 1, 1, 1] = place
        with pytest.raises(OutsideOfTensor, match="a gradient is written"):
            backward(gradient, regions, chosen, *sizes)


def test_offsets_of_windows_are_numbers() -> None:
    program, x = _decoded(_pooled("roi_align")).graph_module, torch.ones(1, 2, 8, 8)
    offsets = torch.zeros(1, 18, 6, 6)
    with refusing_values_outside(program):
        ops.deform_conv2d(x, offsets, torch.ones(3, 2, 3, 3))
        offsets[0, :2, 3, 3] = float("nan")
        with pytest.raises(OutsideOfTensor, match="an offset is no number"):
            ops.deform_conv2d(x, offsets, torch.ones(3, 2, 3, 3))


def test_what_a_graph_takes_is_run() -> None:
    encoded = _pooled("roi_align")
    decoded = _decoded(encoded)
    for attempt in range(ATTEMPTS - 1):
        assert find_refusal(inputs_of(encoded.job, decoded, first_seed=0, attempt=attempt), decoded) is None
    assert isinstance(Eager(decoded, encoded.job).run()["output 0"], torch.Tensor)


def test_graphs_without_operators_of_libraries_are_not_run_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encoded_of(torch.sin, torch.ones(3))
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    monkeypatch.setattr(decoded.graph_module, "forward", lambda *_: pytest.fail("it ran"))
    assert find_refusal(inputs_of(encoded.job, decoded, first_seed=0), decoded) is None


@pytest.mark.parametrize("name", ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"])
@pytest.mark.parametrize("shape", [(2, 5, 2), (10,), (5, 4)])
def test_regions_are_said_in_five_numbers_each(name: str, shape: tuple[int, ...]) -> None:
    # Such kernels read others than were looked at, and ended their process (torchvision 0.26).
    program = _decoded(_pooled("roi_align")).graph_module
    rest = (1,) if name == "ps_roi_align" else (1, False) if name == "roi_align" else ()
    with refusing_values_outside(program), pytest.raises(OutsideOfTensor, match="each is said in 5 numbers"):
        getattr(torch.ops.torchvision, name)(_FEATURES, torch.full(shape, 3e7), 1.0, 2, 2, *rest)


@pytest.mark.parametrize(
    ("name", "gradient", "regions", "sizes", "message"),
    [
        # 30 numbers are read of 24, and the second region begins with the second number of the second row.
        ("_roi_align_backward", (6, 8, 3, 3), (6, 4), (1.0, 3, 3, 3, 8, 16, 12, 2, False), "said in 5 numbers"),
        ("_ps_roi_align_backward", (1, 1000, 2, 2), (1, 5), (1.0, 2, 2, 2, 3, 8, 16, 12), "number of channels"),
        ("_ps_roi_pool_backward", (1, 1000, 2, 2), (1, 5), (1.0, 2, 2, 3, 8, 16, 12), "number of channels"),
        # Eight channels are none for each of sixteen places.
        ("_ps_roi_align_backward", (1, 2, 4, 4), (1, 5), (1.0, 4, 4, 2, 3, 8, 16, 12), "number of channels"),
    ],
)
def test_gradients_are_those_of_the_regions(
    name: str, gradient: tuple[int, ...], regions: tuple[int, ...], sizes: tuple[float, ...], message: str
) -> None:
    program = _decoded(_pooled("roi_align")).graph_module
    chosen = () if name == "_roi_align_backward" else (torch.zeros(gradient, dtype=torch.int32),)
    with refusing_values_outside(program), pytest.raises(OutsideOfTensor, match=message):
        getattr(torch.ops.torchvision, name)(torch.ones(gradient), torch.zeros(regions), *chosen, *sizes)


def test_gradients_of_a_deformed_convolution_read_offsets_that_there_are() -> None:
    program = _decoded(_pooled("roi_align")).graph_module
    given = [
        torch.ones(shape) for shape in ((2, 4, 5, 5), (2, 3, 5, 5), (4, 3, 3, 3), (2, 36, 5, 5), (2, 18, 5, 5), (4,))
    ]
    backward = torch.ops.torchvision._deform_conv2d_backward
    with refusing_values_outside(program):
        backward(given[0], torch.ones(2, 4, 5, 5), torch.ones(4, 4, 3, 3), *given[3:], 1, 1, 1, 1, 1, 1, 1, 2, True)
        with pytest.raises(OutsideOfTensor, match="3 channels are not those of 2 groups"):
            backward(*given, 1, 1, 1, 1, 1, 1, 1, 2, True)
