"""Requests and request files that were damaged at random. `tests/fuzz/run.py` looks longer, guided by coverage."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compilefarm.core.requests import pack_request

from .damage import change_file, change_request, damage
from .properties import check_request, check_request_file
from .seeds import seeds

SHORT = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
RANDOM = st.randoms(use_true_random=False)
TIMES = st.integers(1, 6)


def test_what_was_not_damaged_holds() -> None:
    for request in seeds():
        check_request(request.job.SerializeToString())
        check_request_file(pack_request(request))


@SHORT
@given(random=RANDOM, times=TIMES)
def test_requests_that_say_something_else(random: Random, times: int) -> None:
    content = random.choice(seeds()).job.SerializeToString()
    for _ in range(times):
        content = change_request(content, random=random)
    check_request(content)


@SHORT
@given(random=RANDOM, times=TIMES)
def test_requests_of_which_bytes_were_lost_or_changed(random: Random, times: int) -> None:
    content = random.choice(seeds()).job.SerializeToString()
    for _ in range(times):
        content = damage(content, random=random)
    check_request(content)


@SHORT
@given(content=st.binary(max_size=200))
def test_bytes_that_never_were_a_request(content: bytes) -> None:
    check_request(content)


@SHORT
@given(random=RANDOM, times=TIMES)
def test_request_files(random: Random, times: int) -> None:
    content = pack_request(random.choice(seeds()))
    for _ in range(times):
        content = change_file(content, random=random)
    check_request_file(content)
