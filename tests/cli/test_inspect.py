"""`compilefarm inspect` about checks, and about sources that no farm of ours would have stored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from compilefarm.builder.packing import pack
from compilefarm.cli.inspect import show
from compilefarm.cli.json_words import as_json
from compilefarm.cli.words import console
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.admin_service_pb2 import InspectResponse
from compilefarm.v1.graph_pb2 import Expression, Operation, Operator
from compilefarm.v1.job_pb2 import FAILURE_KIND_VERIFICATION, CompileFailure
from compilefarm.v1.manifest_pb2 import (
    BUILDER_KERNEL,
    VERIFY_TIME_AFTER,
    VERIFY_TIME_NEVER,
    Check,
    Manifest,
    SourceFile,
    Sources,
    Verification,
    VerifyTime,
)

from .commands import run_command

KEY = sample_key("job")
ENDED = Timestamp(seconds=1_800_000_000)
WRONG = CompileFailure(kind=FAILURE_KIND_VERIFICATION, message="output 0 differs from eager by 3")


def inspected(
    folder: Path,
    *arguments: str,
    checks: tuple[Check, ...],
    time: VerifyTime.ValueType | None,
    kernels: tuple[bytes, ...] = (),
) -> int:
    """Inspects a key of which an artifact is stored, unless no time is given, and what checks found."""

    async def fill() -> None:
        store = await open_store(str(folder))
        if time is not None:
            artifact = sample_artifact(KEY, libraries=(*kernels, b"library"))
            for library in artifact.manifest.libraries[: len(kernels)]:
                library.builder = BUILDER_KERNEL
            artifact.manifest.verify_time = time
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        for check in checks:
            await store.put_check(check)

    async def opened() -> object:
        return await open_store(str(folder))

    asyncio.run(fill())
    with serving_in_thread(store=asyncio.run(opened())) as address:  # type: ignore[arg-type]
        return run_command("inspect", KEY, *arguments, "--address", address)


def test_why_an_artifact_is_not_served_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspected(tmp_path, checks=(Check(key=KEY, failed=WRONG, ended=ENDED),), time=None) == 0
    said = capsys.readouterr().out
    assert f"no artifact of {KEY} is served" in said
    assert "FAILED  2027-01-15 08:00:00 UTC: output 0 differs from eager by 3" in said


def test_dates_beyond_the_calendar_are_no_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beyond = Timestamp(seconds=2**40)
    checks = (Check(key=KEY, failed=WRONG, ended=beyond), Check(key=KEY, failed=WRONG, ended=ENDED))
    assert inspected(tmp_path, checks=checks, time=None) == 0
    assert capsys.readouterr().out.count("differs from eager") == 1
    show(Manifest(key=KEY, created=beyond), console())
    assert "no date (1099511627776 s since 1970)" in capsys.readouterr().out


def test_dates_beyond_the_calendar_are_left_out_of_json() -> None:
    beyond = InspectResponse(manifest=Manifest(key=KEY, created=Timestamp(seconds=2**40)))
    beyond.checks.add(failed=WRONG, ended=Timestamp(seconds=-(2**40)))
    beyond.checks.add(failed=WRONG, ended=ENDED)
    said = json.loads(as_json(beyond))
    assert said["manifest"] == {"key": KEY}
    assert [check.get("ended") for check in said["checks"]] == [None, "2027-01-15T08:00:00Z"]


def test_guards_that_make_no_sense_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    deep = Expression(symbol=0)
    for _ in range(40):
        deep = Expression(operation=Operation(operator=Operator.OPERATOR_NOT, operands=[deep]))
    for guard in (Expression(), Expression(operation=Operation(operator=Operator.OPERATOR_NOT)), deep):
        show(Manifest(key=KEY, guards=[guard]), console())
        assert "one that no pod takes" in capsys.readouterr().out


def test_a_check_after_serving_is_told_with_its_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passed = Check(key=KEY, passed=Verification(load_seconds=0.125), ended=ENDED, seconds=1.5)
    assert inspected(tmp_path, checks=(passed,), time=VERIFY_TIME_AFTER) == 0
    said = capsys.readouterr().out
    assert "not before it was served" in said
    assert "passed  2027-01-15 08:00:00 UTC, in 1.50 s: in a clean process" in said


def test_what_a_check_found_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Verification(
        largest_difference=0.001,
        absolute_tolerance=0.01,
        subprocesses=1,
        compiled_kernels=2,
        benchmarks=3,
        compared=4,
        compared_by_seed=5,
        unsteady=6,
        differing_integers=7,
        referenced=8,
        error=0.0125,
        eager_error=0.025,
        allowed_error=0.075,
    )
    inspected(tmp_path, checks=(Check(key=KEY, passed=found, ended=ENDED),), time=VERIFY_TIME_AFTER)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 programs started, 2 kernels compiled, 3 measured;" in said
    assert "at most 0.001 (0.01 is allowed), 8 results held to a reference in high precision: off by 0.013" in said
    assert "eager by 0.025, 0.075 is allowed, in 7 integers, which hang on last bits of floats" in said
    assert "of 9 results 5 are random" in said
    assert "6 results were not compared" in said


def test_kernels_and_libraries_are_told_with_their_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = tuple(bytes([number]) * 1000 for number in range(3))
    inspected(tmp_path, checks=(), time=VERIFY_TIME_NEVER, kernels=kernels)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 kernels of Triton, 3.0 kB (3.0 kB unpacked); 1 shared libraries, 7 B (7 B unpacked)" in said


def test_an_artifact_that_nobody_checks_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspected(tmp_path, checks=(), time=VERIFY_TIME_NEVER) == 0
    said = capsys.readouterr().out
    assert "no: the farm checks nothing (serve --verify off)" in said
    assert "checks\n" not in said


def test_all_of_it_is_there_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspected(tmp_path, "--json", checks=(Check(key=KEY, failed=WRONG, ended=ENDED),), time=VERIFY_TIME_AFTER)
    said = json.loads(capsys.readouterr().out)
    assert said["manifest"]["verify_time"] == "VERIFY_TIME_AFTER"
    assert said["checks"][0]["failed"]["message"] == WRONG.message


def write_sources_of(folder: Path, *paths: str) -> int:
    """Asks for the sources of an artifact whose sources have these paths, to be written into `folder / "sources"`."""
    artifact = sample_artifact(KEY)
    content = Sources(files=[SourceFile(path=path, text="planted") for path in paths])
    blob, stored = pack(content.SerializeToString())
    artifact.manifest.sources.CopyFrom(blob)

    async def fill() -> None:
        store = await open_store(str(folder / "store"))
        await store.put_artifact(artifact.manifest, blobs={**artifact.blobs, blob.digest: stored})

    async def opened() -> object:
        return await open_store(str(folder / "store"))

    asyncio.run(fill())
    with serving_in_thread(store=asyncio.run(opened())) as address:  # type: ignore[arg-type]
        return run_command("inspect", KEY, "--source", str(folder / "sources"), "--address", address)


def test_sources_are_written_below_the_folder(tmp_path: Path) -> None:
    assert write_sources_of(tmp_path, "forward/wrapper.py", "kernels/triton_0.ptx") == 0
    assert (tmp_path / "sources" / "forward" / "wrapper.py").read_text() == "planted"
    assert (tmp_path / "sources" / "kernels" / "triton_0.ptx").read_text() == "planted"


@pytest.mark.parametrize(
    "path", ["../planted", "a/../../planted", "/tmp/planted", "..", ".profile", "a/.git/config", "a\\b", "", "a//b"]
)
def test_sources_are_written_nowhere_else(tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_sources_of(tmp_path, path) != 0
    assert f"{path!r} is no path for a file of sources" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} <= {"store", "sources"}
    assert [each for each in (tmp_path / "sources").rglob("*") if each.is_file()] == []


def test_sources_take_the_place_of_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "sources" / "forward" / "wrapper.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert write_sources_of(tmp_path, "conftest.py", "forward/wrapper.py") == 1
    assert f"{tmp_path / 'sources'} is not empty" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert not (tmp_path / "sources" / "conftest.py").exists()


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a" * 300,)])
def test_sources_that_no_folder_can_hold_are_told_in_a_line(
    tmp_path: Path, paths: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert write_sources_of(tmp_path, *paths) == 1
    assert f"{tmp_path / 'sources'} cannot be written" in capsys.readouterr().err
