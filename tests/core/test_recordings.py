"""Recordings: what is noted is read again, equal workloads have equal recordings, and damage is named."""

from __future__ import annotations

import json
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import (
    DamagedRecording,
    FarmError,
    NewerRecording,
    NotARecording,
    TruncatedRequestFile,
    UnusableRecording,
)
from compilefarm.core.recorder import Recorder
from compilefarm.core.recordings import MANIFEST, RecordedBypass, Recording, read_recording
from compilefarm.core.requests import MAX_FILE_BYTES, Request
from compilefarm.service.testing.jobs import sample_job
from compilefarm.v1.graph_pb2 import NamedValue, Value
from compilefarm.v1.manifest_pb2 import Signature
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.request_file_pb2 import CompileArguments

TENSORS = {digest_of(content): content for content in (b"one", b"another")}
KEY = f"{'a' * 16}-{'b' * 64}"
BYPASS = RecordedBypass(reason="several_devices", message="cuda:0 and cuda:1", nodes=4)


def request(target: str, *tensors: str, mode: str = "") -> Request:
    options = [NamedValue(name="max_autotune", value=Value(boolean=True))]
    arguments = CompileArguments(mode=mode, options=[] if mode else options)
    job = sample_job(target, constants=tensors)
    return Request(job=job, blobs={digest: TENSORS[digest] for digest in tensors}, arguments=arguments)


RELU, SIN = request("torch.relu"), request("torch.sin", *TENSORS)


def record(folder: Path, *requests: Request) -> None:
    recorder = Recorder(folder)
    for position, each in enumerate(requests):
        recorder.note_request(each, name=f"graph {position}", position=position)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def noted(recording: Recording) -> list[tuple[Request, str, int, int]]:
    return [(each.request, each.name, each.first, each.count) for each in recording.requests]


def record_package(folder: Path, **fields: Any) -> SignedPackage:
    """Records a package as a farm may have told it, and returns what was signed of it."""
    signature = Signature(key_id="k" * 16, value=b"s" * 64)
    package = SignedPackage(key=KEY, name=digest_of(b"name"), content=b"content", signature=signature)
    told = SignedPackage(namespace="of the farm", published_seconds=1.0)
    told.MergeFrom(package)
    for name, value in fields.items():
        setattr(told, name, value)
    Recorder(folder).note_package(told, function="Model.forward")
    return package


def test_packages_are_kept_as_they_were_signed_each_once(tmp_path: Path) -> None:
    record(tmp_path, RELU)
    assert "packages" not in json.loads((tmp_path / MANIFEST).read_text())
    package = record_package(tmp_path)
    record_package(tmp_path)
    (recorded,) = read_recording(tmp_path).packages
    assert (recorded.package, recorded.function) == (package, "Model.forward")
    assert noted(read_recording(tmp_path)) == [(RELU, "graph 0", 0, 1)]


PACKAGE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "is missing": lambda file: file.unlink(),
    "is cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "is another": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("how", PACKAGE_DAMAGE)
def test_a_package_that_is_not_what_was_recorded_is_named(how: str, tmp_path: Path) -> None:
    record_package(tmp_path)
    (file,) = (tmp_path / "packages").iterdir()
    PACKAGE_DAMAGE[how](file)
    with pytest.raises(DamagedRecording, match=file.name):
        read_recording(tmp_path)


def test_a_package_under_the_name_of_another_is_named(tmp_path: Path) -> None:
    record_package(tmp_path)
    (file,) = (tmp_path / "packages").iterdir()
    manifest, renamed = tmp_path / MANIFEST, file.with_stem(f"{'0' * 16}-{'0' * 32}")
    manifest.write_text(manifest.read_text().replace(file.name, renamed.name))
    file.rename(renamed)
    with pytest.raises(DamagedRecording, match="is another package than its name says"):
        read_recording(tmp_path)


def test_what_names_no_package_becomes_no_path(tmp_path: Path) -> None:
    record_package(tmp_path)
    for name in ("packages/\0.cfpkg", f"packages/{'a' * 300}.cfpkg", "packages/../recording.json"):
        change_manifest(tmp_path, lambda data, name=name: data["packages"][0].update(file=name))
        with pytest.raises(DamagedRecording, match="no package of a recording"):
            read_recording(tmp_path)


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    record(tmp_path, SIN, RELU, SIN)
    recording = read_recording(tmp_path)
    assert noted(recording) == [(SIN, "graph 0", 0, 2), (RELU, "graph 1", 1, 1)]
    assert recording.bypasses == []


def test_one_job_asked_for_in_two_ways_is_two_requests(tmp_path: Path) -> None:
    record(tmp_path, RELU, request("torch.relu", mode="max-autotune"))
    assert [each.request.arguments.mode for each in read_recording(tmp_path).requests] == ["", "max-autotune"]  # type: ignore[union-attr]


def test_tensors_are_kept_once_and_can_be_left_out(tmp_path: Path) -> None:
    (digest, content), _ = TENSORS.items()
    with_one = request("torch.cos", digest)
    record(tmp_path / "with", SIN, with_one)
    assert sorted(path.name for path in (tmp_path / "with" / "tensors").iterdir()) == sorted(TENSORS)
    without = Recorder(tmp_path / "without", tensors=False)
    without.note_request(with_one, name="", position=0)
    (recorded,) = read_recording(tmp_path / "without").requests
    assert recorded.request.missing_digests() == [digest]
    assert content not in b"".join(files(tmp_path / "without").values())


def test_tensors_of_some_graphs_may_be_left_out(tmp_path: Path) -> None:
    (digest, _), (other, _) = TENSORS.items()
    Recorder(tmp_path, tensors=False).note_request(request("torch.cos", digest), name="", position=0)
    Recorder(tmp_path).note_request(request("torch.sin", other), name="", position=1)
    first, second = read_recording(tmp_path).requests
    assert (first.request.missing_digests(), second.request.missing_digests()) == ([digest], [])


@pytest.mark.parametrize(
    "name", ["../../secret", "\N{MATHEMATICAL MONOSPACE DIGIT ZERO}" * 64], ids=["path", "no ASCII"]
)
def test_what_a_request_calls_a_digest_is_not_followed(name: str, tmp_path: Path) -> None:
    job = sample_job(constants=[name])
    Recorder(tmp_path, tensors=False).note_request(Request(job=job), name="", position=0)
    with pytest.raises(DamagedRecording, match="which is no digest"):
        read_recording(tmp_path)


def test_no_more_is_read_of_a_tensor_than_one_may_have(tmp_path: Path) -> None:
    (digest, _), _ = TENSORS.items()
    record(tmp_path, request("torch.cos", digest))
    # As a link to a device would be, that has no end.
    with (tmp_path / "tensors" / digest).open("wb") as file:
        file.truncate(2 * MAX_FILE_BYTES)
    tracemalloc.start()
    with pytest.raises(DamagedRecording, match="other bytes"):
        read_recording(tmp_path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # That much is set aside for a request, and hardly ever taken.
    assert most_bytes < 1.1 * MAX_FILE_BYTES


@pytest.mark.parametrize("pattern", [MANIFEST, "requests/*", "tensors/*"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_nobody_waits_for_what_is_no_file(tmp_path: Path, pattern: str, kind: str) -> None:
    record(tmp_path, request("torch.cos", *TENSORS))
    place = the_file(tmp_path, pattern)
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(UnusableRecording, match="it is no regular file"):
        read_recording(tmp_path)


def test_bypasses_are_noted_with_their_reason(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for first in (3, 1, 2):
        recorder.note_bypass(RecordedBypass(reason=BYPASS.reason, message=BYPASS.message, nodes=4, first=first))
    (bypass,) = read_recording(tmp_path).bypasses
    assert (bypass.reason, bypass.message, bypass.first, bypass.count) == (BYPASS.reason, BYPASS.message, 1, 3)


def test_a_reviewer_sees_what_a_request_is(tmp_path: Path) -> None:
    record(tmp_path, SIN)
    (entry,) = json.loads((tmp_path / MANIFEST).read_text())["requests"]
    assert entry["environment"]["torch"] == "2.15.0+cpu"
    assert entry["options"] == {"max_autotune": True}
    assert (entry["inputs"], entry["nodes"], entry["tensors"]) == (["float32[]"], 3, 2)


def test_equal_workloads_have_equal_recordings_whoever_is_first(tmp_path: Path) -> None:
    ways = [(RELU, SIN), (RELU, SIN), (SIN,)]
    for name, order in (("one", ways), ("other", list(reversed(ways)))):
        for requests in order:
            record(tmp_path / name, *requests)
        Recorder(tmp_path / name).note_bypass(BYPASS)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def _record_many(folder: Path) -> None:
    recorder = Recorder(folder)
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: recorder.note_request(SIN, name="", position=0), range(10)):
            pass
        recorder.note_request(RELU, name="", position=1)


def test_processes_and_threads_record_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(_record_many, [tmp_path] * 4))
    assert [(each.request, each.count) for each in read_recording(tmp_path).requests] == [(SIN, 40), (RELU, 4)]
    assert not list(tmp_path.glob("unfinished"))


def test_entries_may_be_taken_out_and_counted_anew_by_hand(tmp_path: Path) -> None:
    record(tmp_path, SIN, RELU)

    def edit(data: dict[str, Any]) -> None:
        del data["requests"][0]
        data["requests"][0]["count"] = 9

    change_manifest(tmp_path, edit)
    assert noted(read_recording(tmp_path)) == [(RELU, "graph 1", 1, 9)]


def change_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    edit(data)
    (folder / MANIFEST).write_text(json.dumps(data))


def manifest(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: change_manifest(folder, edit)


def the_file(folder: Path, pattern: str) -> Path:
    return next(iter(sorted(folder.glob(pattern))))


def cut(folder: Path, pattern: str) -> None:
    path = the_file(folder, pattern)
    path.write_bytes(path.read_bytes()[:-20])


def swap_requests(folder: Path) -> None:
    first, second = sorted(folder.glob("requests/*"))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], type[FarmError], str]] = {
    "nothing there": (lambda folder: (folder / MANIFEST).unlink(), NotARecording, "there is no .*recording.json"),
    "manifest cut": (lambda folder: cut(folder, MANIFEST), DamagedRecording, "recording.json is cut short"),
    "manifest of text": (lambda folder: (folder / MANIFEST).write_text("[]"), DamagedRecording, "names no format"),
    "deep": (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), DamagedRecording, "cut short, or no JSON"),
    "newer": (manifest(lambda data: data.update(format=2)), NewerRecording, "has format 2, .* upgrade Compilefarm"),
    "no requests": (manifest(lambda data: data.pop("requests")), DamagedRecording, "nobody writes .*'requests'"),
    "no count": (manifest(lambda data: data["requests"][0].pop("count")), DamagedRecording, "'count'.*record the"),
    "count of none": (manifest(lambda data: data["requests"][0].update(count=0)), DamagedRecording, "count is 0"),
    "named twice": (
        manifest(lambda data: data["requests"].append(dict(data["requests"][0]))),
        DamagedRecording,
        "twice",
    ),
    "elsewhere": (
        manifest(lambda data: data["requests"][0].update(file="requests/../../secret")),
        DamagedRecording,
        "no request of a recording",
    ),
    "a name that no file can have": (
        manifest(lambda data: data["requests"][0].update(file=f"requests/{'a' * 300}")),
        DamagedRecording,
        "no request of a recording",
    ),
    "counted beyond any number": (
        manifest(lambda data: data["requests"][0].update(count=10**400)),
        DamagedRecording,
        "count is 1000",
    ),
    "words edited": (
        manifest(lambda data: data["requests"][0]["environment"].update(torch="2.15.0")),
        DamagedRecording,
        "requests/.*.cfreq that 'environment' is .*2.15.0.*edited",
    ),
    "words added": (
        manifest(lambda data: data["requests"][0].update(approved=True)),
        DamagedRecording,
        "'approved' is true",
    ),
    "request cut": (lambda folder: cut(folder, "requests/*"), TruncatedRequestFile, "requests/.*.cfreq: it ends after"),
    "requests swapped": (swap_requests, DamagedRecording, "holds another request than its name says"),
    "request gone": (lambda folder: the_file(folder, "requests/*").unlink(), DamagedRecording, "is missing: record"),
    "tensor gone": (
        lambda folder: the_file(folder, "tensors/*").unlink(),
        DamagedRecording,
        "tensors/[0-9a-f]*, a tensor that a graph holds, cannot be read .*record the workload again",
    ),
    "tensor edited": (
        lambda folder: the_file(folder, "tensors/*").write_bytes(b"other"),
        DamagedRecording,
        "tensors/[0-9a-f]* holds other bytes",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_recording_is_refused_by_the_name_of_what_is_wrong(tmp_path: Path, name: str) -> None:
    record(tmp_path, SIN, RELU)
    damage, kind, words = DAMAGE[name]
    damage(tmp_path)
    with pytest.raises(kind, match=f"(?s){words}"):
        read_recording(tmp_path)


def test_nothing_is_recorded_over_a_recording_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DamagedRecording, match="cut short"):
        Recorder(tmp_path)
    assert (tmp_path / MANIFEST).read_text() == "{"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableRecording, match="file/recording cannot be written: Not a directory"):
        Recorder(tmp_path / "file" / "recording")
