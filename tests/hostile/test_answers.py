"""What a child that was taken over says to its supervisor: it fails its job, and is no burden to others."""

from __future__ import annotations

import asyncio
import time

import pytest

from compilefarm.core.errors import ProcessDied
from compilefarm.core.pool import Artifact
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.job_pb2 import FAILURE_KIND_CRASHED, FAILURE_KIND_OUTPUT_TOO_LARGE, CompileFailure
from compilefarm.worker.answers import complete
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, supervising


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
        # Each is kept, and told to all who wait: 60,000 of them were.
        ("enter-a-phase-twice", "that it has entered already"),
        ("name-many-libraries", "bytes about its artifact"),
        # Each who looked such an artifact up had all others wait for 0.4 s.
        ("assume-much", "guards that cannot be: a guard of the artifact is one of too many"),
        (
            "assume-much-at-once",
            "guards that cannot be: a guard of the artifact is an expression of more than 1000 terms",
        ),
        ("break-off", "named blobs that it did not send"),
        ("name-no-source", "a library for a source that cannot be: '../../etc/passwd'"),
        ("name-a-colour", "a library of a name that cannot be"),
    ],
)
async def test_what_no_child_of_ours_says_is_its_death(script: str, words: str) -> None:
    async with supervising(child_settings(script)) as supervisor:
        with pytest.raises(ProcessDied, match=words):
            await supervisor.run(JOB, on_phase=lambda _: None)


def test_fields_that_nobody_knows_are_neither_kept_nor_signed() -> None:
    artifact = sample_artifact(sample_key("job"), libraries=())
    known = artifact.manifest.SerializeToString(deterministic=True)
    # Field 2000, a number, in the manifest and in what it holds.
    for message in (artifact.manifest, artifact.manifest.program):
        message.MergeFromString(b"\x80\x7d\x01")
    completed = complete(artifact.manifest, artifact.blobs)
    assert completed.manifest.SerializeToString(deterministic=True) == known


async def test_a_message_that_would_grow_when_it_is_parsed_is_not() -> None:
    # 16 MiB of it became 350 MiB; a GiB, which a child may return, ended the farm.
    async with supervising(child_settings("say-many-timings")) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUTPUT_TOO_LARGE
    assert "is more than the 1114112 allowed" in failure.message


async def test_what_is_too_much_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000,000 timings, which a message held, kept all others waiting for 5 s while they were copied."""

    def copy(**_: object) -> None:
        raise AssertionError("it is copied")

    monkeypatch.setattr("compilefarm.worker.supervisor.Manifest", copy)
    async with supervising(child_settings("take-time-for-many-phases")) as supervisor:
        with pytest.raises(ProcessDied, match="how long 500000 phases took"):
            await supervisor.run(JOB, on_phase=lambda _: None)


async def test_small_messages_are_counted() -> None:
    # Each takes six bytes in the pipe, and a hundred in the memory of the farm.
    async with supervising(child_settings("say-little-very-often", output_bytes=100 * 16 * 1024)) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUTPUT_TOO_LARGE


@pytest.mark.parametrize(
    ("script", "words"),
    [("verify-at-length", "bytes about what it verified"), ("verify-for-ever", "took times that cannot be")],
)
async def test_what_no_verifier_of_ours_says_is_its_death(script: str, words: str) -> None:
    child = child_settings(script)
    async with supervising(child, verifier=child) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_CRASHED
    assert words in failure.message


async def test_a_large_artifact_keeps_nobody_waiting() -> None:
    # One of 1 GB, which a child may return, did so for 12 s.
    child, pauses = child_settings("compile-much"), list[float]()
    async with supervising(child, verifier=child) as supervisor:
        job = asyncio.create_task(supervisor.run(JOB, on_phase=lambda _: None))
        started = last = time.monotonic()
        while not job.done():
            await asyncio.sleep(0.001)
            pauses.append(time.monotonic() - last)
            last = time.monotonic()
    assert isinstance(job.result(), Artifact)
    assert max(pauses) < (last - started) / 8
