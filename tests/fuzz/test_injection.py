"""Texts of requests do not become code. `python3 dev.py fuzz injection` looks longer."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
import torch

from compilefarm.graph import arguments, literals
from compilefarm.graph.testing import capture
from compilefarm.v1.job_pb2 import Job

from .injection import Escaped, try_request
from .markers import MARKERS, WORD, Marked, marked, operators_with_text

REQUESTS = 30


def test_a_sample_of_requests_with_markers() -> None:
    outcomes = [try_request(request) for request in islice(marked(Random(15)), REQUESTS)]
    assert outcomes.count("refused") > REQUESTS // 2


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
    return Marked(place="a message", job=job)


def test_messages_with_markers_are_refused() -> None:
    assert {try_request(_request(marker)) for marker in MARKERS} == {"refused"}


@pytest.mark.timeout(300)
def test_it_is_noticed_where_the_decoder_lets_text_through(monkeypatch: pytest.MonkeyPatch) -> None:
    # That is what this file is for: it must not pass because nothing is ever compiled.
    monkeypatch.setattr(arguments, "find_objection", lambda *_, **__: None)
    monkeypatch.setattr(literals, "is_plain", lambda _: True)
    with pytest.raises(Escaped):
        try_request(_request(f'"), 0), ({WORD}(), 0)); //'))
