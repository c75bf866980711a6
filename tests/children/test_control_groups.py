"""Children in control groups of their own, where this machine lets whoever runs the tests make some."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilefarm.v1.job_pb2 import FAILURE_KIND_OUT_OF_MEMORY, CompileFailure
from compilefarm.worker.control_groups import ControlGroups, ControlGroupsUnavailable, memory_limits
from compilefarm.worker.process import ChildSettings
from compilefarm.worker.sandbox import SandboxUnavailable, open_sandbox
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, hanging_job, supervising
from tests.children.test_descendants import daemon_of
from tests.processes import is_alive


@pytest.fixture
def folder() -> Iterator[Path]:
    """A group of this machine, which may have no controllers."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    places = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not places:
        pytest.skip("this machine has no control groups of version 2")
    path = places[0] / f"compilefarm-tests-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield path
    path.rmdir()


def child_in(groups: ControlGroups, script: str, *, is_shut_off: bool = False) -> ChildSettings:
    sandbox = open_sandbox(interpreter=sys.executable, gpu=False) if is_shut_off else None
    return child_settings(script, groups=groups, sandbox=sandbox)


def groups_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize("is_shut_off", [False, True])
async def test_what_a_child_starts_is_in_its_group_and_ends_with_it(folder: Path, is_shut_off: bool) -> None:
    child = child_in(ControlGroups(folder=folder), "hang-with-daemon", is_shut_off=is_shut_off)
    try:
        async with supervising(child) as supervisor:
            job = await hanging_job(supervisor)
            await daemon_of(supervisor)
            (group,) = groups_in(folder)
            pids = set(map(int, (group / "cgroup.procs").read_text().split()))
            # The child and what it started; in a sandbox the child is two, one of them outside.
            assert len(pids) == (3 if is_shut_off else 2)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert not any(map(is_alive, pids))
            assert not group.exists()
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")
    assert groups_in(folder) == []


async def test_the_kernel_bounds_what_a_child_takes(folder: Path) -> None:
    groups = ControlGroups(folder=folder, memory_bytes=200 * 1024 * 1024, most_tasks=100)
    try:
        groups.check()
    except ControlGroupsUnavailable as error:
        pytest.skip(str(error))
    async with supervising(child_in(groups, "take-shared-memory")) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUT_OF_MEMORY
    assert "control group" in failure.message


def test_limits_are_what_the_kernel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", _mkdir_with_swap(Path.mkdir))
    group = ControlGroups(folder=tmp_path, memory_bytes=1000, most_tasks=7).make()
    told = {path.name: path.read_text() for path in group.path.iterdir()}
    assert told == {"memory.max": "1000", "memory.oom.group": "1", "memory.swap.max": "0", "pids.max": "7"}


def _mkdir_with_swap(mkdir):  # type: ignore[no-untyped-def]
    def make(path: Path) -> None:
        mkdir(path)
        (path / "memory.swap.max").write_text("max")

    return make


class FakeGroup:
    """A group as the kernel shows it, of whose files each write counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, pids: list[int], can_end: bool = True) -> None:
        self.folder = folder
        self.members = {folder: list(map(str, pids))}
        self.written: list[tuple[str, str]] = []
        (folder / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
        made, read, removed = Path.mkdir, Path.read_text, Path.rmdir

        def mkdir(path: Path, **kwargs: bool) -> None:
            made(path, **kwargs)
            self.members.setdefault(path, [])
            if can_end:
                (path / "cgroup.kill").touch()

        def rmdir(path: Path) -> None:
            (path / "cgroup.kill").unlink(missing_ok=True)
            removed(path)

        def write(path: Path, text: str) -> int:
            if path.name == "cgroup.procs":
                self.members = {group: [pid for pid in pids if pid != text] for group, pids in self.members.items()}
                self.members[path.parent].append(text)
            if path.name == "cgroup.subtree_control" and self.members[folder]:
                raise OSError(16, "Device or resource busy")
            self.written.append((path.name, text))
            return len(text)

        def content(path: Path) -> str:
            return "\n".join(self.members[path.parent]) if path.name == "cgroup.procs" else read(path)

        for name, fake in {"mkdir": mkdir, "rmdir": rmdir, "write_text": write, "read_text": content}.items():
            monkeypatch.setattr(Path, name, fake)


def test_a_farm_steps_aside_in_its_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container, and in a service of systemd: none with processes of its own may share out controllers.
    fake = FakeGroup(tmp_path, monkeypatch, pids=[1, os.getpid()])
    ControlGroups(folder=tmp_path).check()
    assert fake.members[tmp_path] == []
    assert fake.members[tmp_path / "compilefarm"] == ["1", str(os.getpid())]
    assert fake.written[-1] == ("cgroup.subtree_control", "+memory +pids +cpu")


def test_processes_of_others_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGroup(tmp_path, monkeypatch, pids=[1])
    with pytest.raises(ControlGroupsUnavailable, match="busy"):
        ControlGroups(folder=tmp_path).check()
    assert fake.members == {tmp_path: ["1"]}


def test_a_kernel_that_cannot_end_a_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGroup(tmp_path, monkeypatch, pids=[], can_end=False)
    with pytest.raises(ControlGroupsUnavailable, match=r"before 5\.14"):
        ControlGroups(folder=tmp_path).check()


@pytest.mark.parametrize(
    ("told", "files", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "1000"}, [1000]),
        ("0::/\n", {"memory.max": "2000"}, [2000]),
        ("5:memory:/x\n4:cpu:/y\n0::/\n", {"memory/x/memory.limit_in_bytes": "3000"}, [3000]),
        ("0::/not/seen/from/here\n", {}, []),
    ],
)
def test_limits_around_the_farm_are_seen(tmp_path: Path, told: str, files: dict[str, str], limits: list[int]) -> None:
    (tmp_path / "told").write_text(told)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(memory_limits(root=tmp_path, told=tmp_path / "told")) == limits


def test_a_folder_that_is_no_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlGroupsUnavailable, match=r"--control-group .* cannot be used: .*Delegate=yes"):
        ControlGroups(folder=tmp_path / "missing").check()
