"""Texts of requests do not become code. `python -m tests.fuzz.injection` looks longer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from random import Random

import pytest
import torch

from compilefarm.graph import arguments, literals
from compilefarm.graph.higher_order import SIGNATURES
from compilefarm.graph.testing import capture
from compilefarm.v1.job_pb2 import Job
from tests.lean import begin

from . import injection, markers
from .injection import Escaped, try_request
from .markers import MARKERS, WORD, Marked, marked, operators_with_text

REQUESTS = 30


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process of its own: torch keeps in mind what it was told of a GPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as executor:
        yield executor


def test_a_sample_of_requests_with_markers(apart: Executor) -> None:
    outcomes = apart.submit(_outcomes_of_a_sample).result()
    assert outcomes.count("refused") > REQUESTS // 2


def _outcomes_of_a_sample() -> list[str]:
    return [try_request(request) for request in islice(marked(Random(15)), REQUESTS)]


def test_operators_that_take_text_are_found() -> None:
    assert {"aten::_assert_async.msg", "aten::gelu", "aten::div.Tensor_mode"} <= set(operators_with_text())
    assert len(operators_with_text()) > 50


def _checking(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "a message")
    return x.relu()


def _request(message: str) -> Marked:
    job = Job()
    job.CopyFrom(capture(_checking, torch.ones(4)).encode().job)
    (call,) = (node.call for node in job.graph.nodes if "_assert_async" in node.call.target)
    call.args[1].text = message
    return Marked(kind="message", place="a message", job=job)


def test_messages_with_markers_are_refused(apart: Executor) -> None:
    assert apart.submit(_outcomes_of_messages).result() == {"refused"}


def _outcomes_of_messages() -> set[str]:
    return {try_request(_request(marker)) for marker in MARKERS}


@pytest.mark.timeout(300)
def test_it_is_noticed_where_the_decoder_lets_text_through(apart: Executor) -> None:
    # That is what this file is for: it must not pass because nothing is ever compiled.
    with pytest.raises(Escaped):
        apart.submit(_try_without_the_decoder).result()


def _try_without_the_decoder() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "find_objection", lambda *_, **__: None)
        patch.setattr(literals, "is_plain", lambda _: True)
        try_request(_request(f'"), 0), ({WORD}(), 0)); //'))


def test_kernels_for_triton_are_looked_at_without_a_gpu(apart: Executor) -> None:
    sources = apart.submit(_sources_for_a_gpu).result()
    assert any("@triton.jit" in source for source in sources)


def _sources_for_a_gpu() -> list[str]:
    job = Job()
    job.CopyFrom(capture(lambda x: torch.softmax(x.relu(), -1), torch.ones(4, 64)).encode().job)
    job.inputs[0].tensor.device.type = "cuda"
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(injection, "look_at", lambda source, extension: seen.append(source))
        try_request(Marked(kind="none", place="none", job=job))
    return seen


def test_a_marker_in_a_kernel_for_triton_and_in_what_tunes_it_is_noticed() -> None:
    kernel = f"import triton\n\n@triton.jit\ndef kernel(x):\n    {WORD}(x)\n"
    tuning = f"""r'''\nCompile-time auto-tuning block: \nkernel = \\"\\"\\"\n{kernel}\\"\\"\\"\n'''\n"""
    for source in (kernel, f"source = {kernel!r}\n", tuning):
        with pytest.raises(Escaped, match="the marker is code"):
            injection.look_at(source, "py")


def test_every_higher_order_operator_is_among_the_examples(apart: Executor) -> None:
    assert apart.submit(_higher_order_operators).result() == SIGNATURES.keys()


def _higher_order_operators() -> set[str]:
    return {call.target for job in markers.examples() for call in markers.higher_order_calls(job)}


def test_every_option_and_every_operator_with_text_has_its_turn(apart: Executor) -> None:
    options = {f"the option {name}" for _, name in markers.options()}
    assert options | set(operators_with_text()) <= apart.submit(_places, len(markers.options()) * 5).result()


def _places(count: int) -> set[str]:
    return {request.place for request in islice(marked(Random(1)), count)}
