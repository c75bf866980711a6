"""What a child that was taken over says to its supervisor: it fails its job, and is no burden to others."""

from __future__ import annotations

import pytest

from compilefarm.core.errors import ProcessDied
from compilefarm.v1.job_pb2 import FAILURE_KIND_OUTPUT_TOO_LARGE, CompileFailure, Phase
from compilefarm.worker.testing import child_settings
from tests.worker.jobs import JOB, supervising


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # The farm would go on reckoning with it, and have pods reckon.
        ("take-no-time", "times that cannot be"),
        ("take-centuries", "times that cannot be"),
        ("take-time-twice", "twice"),
        ("take-time-for-nothing", "phases took that there are not"),
        ("lie-about-size", "other sizes than those that it sent"),
        # No name can be found for it when it is logged.
        ("fail-in-an-unknown-way", "failed in way 4711, which there is not"),
        ("fail-at-length", "bytes about its failure"),
        ("enter-an-unknown-phase", "phase 4711, which there is not"),
    ],
)
async def test_what_no_child_of_ours_says_is_its_death(script: str, words: str) -> None:
    async with supervising(child_settings(script)) as supervisor:
        with pytest.raises(ProcessDied, match=words):
            await supervisor.run(JOB, on_phase=lambda _: None)


async def test_a_message_that_would_grow_when_it_is_parsed_is_not() -> None:
    # 16 MiB of it became 350 MiB; a GiB, which a child may return, ended the farm.
    async with supervising(child_settings("say-many-timings")) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUTPUT_TOO_LARGE
    assert "is more than the 4194304 allowed" in failure.message


async def test_small_messages_are_counted() -> None:
    # Each takes six bytes in the pipe, and a hundred in the memory of the farm.
    phases: list[Phase.ValueType] = []
    async with supervising(child_settings("say-little-very-often", output_bytes=100 * 16 * 1024)) as supervisor:
        failure = await supervisor.run(JOB, on_phase=phases.append)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUTPUT_TOO_LARGE
    assert 0 < len(phases) < 100
