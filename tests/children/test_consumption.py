"""What a whole child takes is bounded: memory that no limit on a process counts, and files; in a sandbox or not."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from compilefarm.core.errors import ProcessDied
from compilefarm.v1.child_pb2 import ChildTask
from compilefarm.v1.job_pb2 import FAILURE_KIND_OUT_OF_DISK, FAILURE_KIND_OUT_OF_MEMORY, CompileFailure
from compilefarm.worker import consumption, process
from compilefarm.worker.consumption import _entries_in, disk_bytes, memory_bytes, resident_bytes, task_count
from compilefarm.worker.pool import PoolSettings, _memory_bytes, _memory_of_machine
from compilefarm.worker.sandbox import Sandbox, SandboxUnavailable, open_sandbox
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, supervising
from tests.hostile import as_nobody as as_nobody_program
from tests.hostile.as_nobody import why_nobody_cannot_run

_LIMIT_BYTES = 200 * 1024 * 1024


@pytest.fixture(scope="module", params=["sandbox", "none"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox | None:
    if request.param == "none":
        return None
    try:
        return open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("take-shared-memory", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-files-in-memory", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-sockets", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-datagrams", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-addresses", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-places", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-open-folders", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-memory-of-processes", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("hide-behind-a-name", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("hide-behind-a-thread", FAILURE_KIND_OUT_OF_MEMORY, "its processes took more than"),
        ("take-files", FAILURE_KIND_OUT_OF_DISK, "its files took more than"),
        ("take-files-without-a-name", FAILURE_KIND_OUT_OF_DISK, "its files took more than"),
    ],
)
async def test_a_child_that_takes_too_much_is_ended(
    sandbox: Sandbox | None, script: str, kind: int, words: str
) -> None:
    child = child_settings(script, memory_bytes=_LIMIT_BYTES, disk_bytes=_LIMIT_BYTES, sandbox=sandbox)
    async with supervising(child) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == kind
    assert words in failure.message


async def test_connections_count_that_nobody_has_accepted(sandbox: Sandbox | None) -> None:
    # Some 3,000 of one socket held 700 MB, and were one open file.
    if sandbox is None:
        pytest.skip("they are told apart from those of others by the network of a sandbox")
    child = child_settings("take-waiting-connections", memory_bytes=_LIMIT_BYTES, sandbox=sandbox)
    async with supervising(child) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUT_OF_MEMORY


async def test_what_a_child_has_is_measured_before_its_task_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first measurement takes a while. What a child took meanwhile was its own."""
    order: list[str] = []

    def measured(_: object) -> int:
        order.append("measured")
        return 0

    async def given(self: process.ChildProcess, task: ChildTask) -> None:
        order.append(str(task.WhichOneof("task")))
        await give(self, task)

    give = process.ChildProcess._give
    monkeypatch.setattr(process, "resident_bytes", measured)
    monkeypatch.setattr(process.ChildProcess, "_give", given)
    async with supervising(child_settings("compile")) as supervisor:
        await supervisor.run(JOB, on_phase=lambda _: None)
    assert [step for step in order if step != "ping"][:2] == ["measured", "compile"]


async def test_a_child_that_becomes_too_many_is_ended(sandbox: Sandbox | None) -> None:
    # 32 processes, of which no limit of the kernel counts those of the administrator.
    child = child_settings("take-memory-of-processes", most_tasks=20, sandbox=sandbox)
    async with supervising(child) as supervisor:
        with pytest.raises(ProcessDied, match="more than 20 processes and threads"):
            await supervisor.run(JOB, on_phase=lambda _: None)


async def test_a_child_that_opens_too_many_files_is_ended(sandbox: Sandbox | None) -> None:
    # Each costs the farm a look, each second: with a million it would see the memory no more.
    child = child_settings("open-many-files", most_files=400, sandbox=sandbox)
    async with supervising(child) as supervisor:
        with pytest.raises(ProcessDied, match="its processes opened more than 400 files together"):
            await supervisor.run(JOB, on_phase=lambda _: None)


async def test_folders_count_as_well(sandbox: Sandbox | None) -> None:
    child = child_settings("make-folders", disk_bytes=200 * 16 * 1024, sandbox=sandbox)
    async with supervising(child) as supervisor:
        failure = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(failure, CompileFailure)
    assert failure.kind == FAILURE_KIND_OUT_OF_DISK


async def test_a_child_whose_files_take_too_long_to_look_at_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # 40,000 folders took 1.5 s, and there may be thirty times as many; meanwhile nobody looks at its memory.
    monkeypatch.setattr(consumption, "_MOST_LOOK_SECONDS", 0.0)
    async with supervising(child_settings("make-folders", disk_bytes=_LIMIT_BYTES)) as supervisor:
        with pytest.raises(ProcessDied, match=r"what it takes cannot be seen: .*more than can be looked at"):
            await supervisor.run(JOB, on_phase=lambda _: None)


def test_memory_that_is_mapped_again_and_again_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel takes 33 ms for each gigabyte of each process, and may be given a thousand times what there is.
    monkeypatch.setattr(consumption, "_MOST_TIMES_MAPPED", 0)
    with pytest.raises(OSError, match="too much memory is mapped again and again"):
        memory_bytes([os.getpid()])


@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is closed to the administrator")
async def test_a_child_that_hides_its_files_is_ended(sandbox: Sandbox | None) -> None:
    child = child_settings("close-its-folder", disk_bytes=_LIMIT_BYTES, sandbox=sandbox)
    async with supervising(child) as supervisor:
        with pytest.raises(ProcessDied, match="what it takes cannot be seen: PermissionError"):
            await supervisor.run(JOB, on_phase=lambda _: None)


async def test_a_child_that_has_looks_wait_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it can by locks of its memory: a look of 39 s saw nothing of the 4 GB that were taken meanwhile."""
    released = threading.Event()
    monkeypatch.setattr(process, "_LOOK_SECONDS", 2.0)
    monkeypatch.setattr(process, "task_count", lambda _: released.wait(60.0))
    async with supervising(child_settings("hang", most_tasks=1000)) as supervisor:
        with pytest.raises(ProcessDied, match="what it takes cannot be seen: a look takes more than 2 s"):
            await supervisor.run(JOB, on_phase=lambda _: None)
        released.set()


@pytest.mark.parametrize("is_sandboxed", [True, False])
def test_a_child_whose_program_may_not_be_read_is_ended(
    is_sandboxed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is hidden from the administrator."""
    as_nobody = [] if os.geteuid() else [str(Path(as_nobody_program.__file__))]
    if as_nobody and (problem := why_nobody_cannot_run()) is not None:
        pytest.skip(problem)
    sandbox = [] if is_sandboxed else ["--none"]
    told = subprocess.run(
        [sys.executable, *as_nobody, str(Path(__file__).with_name("hiding.py")), *sandbox],
        env={**os.environ, "TMPDIR": "/tmp", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    if told.stdout.startswith("no sandbox"):
        pytest.skip(told.stdout)
    assert "one of its processes hides what it has: nobody may read its program" in told.stdout, told.stderr


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Whoever follows one that leads to a large folder looks at nothing else for minutes."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    for folder in (own, own / "found", elsewhere, elsewhere / "within"):
        folder.mkdir()
    descriptor = os.open(own, os.O_RDONLY)
    try:
        seen = _entries_in(descriptor)
        first = next(seen)
        (own / "found").rmdir()
        (own / "found").symlink_to(elsewhere)
        assert (stat.S_ISDIR(first.st_mode), list(seen)) == (True, [])
    finally:
        os.close(descriptor)


def test_folders_that_cannot_be_seen_to_their_ends_are_told(tmp_path: Path) -> None:
    (tmp_path / "/".join("a" * 300)).mkdir(parents=True)
    with pytest.raises(OSError, match="nested more than 200 levels deep"):
        disk_bytes(tmp_path, [])


def _sees_what_is_mapped() -> bool:
    try:
        with os.scandir("/proc/self/map_files") as places:
            return bool(os.readlink(next(places).path))
    except PermissionError:
        return False


sees_what_is_mapped = pytest.mark.skipif(not _sees_what_is_mapped(), reason="the kernel shows it to nobody here")


@sees_what_is_mapped
def test_shared_memory_counts_of_which_nothing_is_in_a_table_any_more() -> None:
    before = memory_bytes([os.getpid()])
    with mmap.mmap(-1, 64 * 1024 * 1024) as shared:
        shared.write(bytes(len(shared)))
        shared.madvise(mmap.MADV_DONTNEED)
        assert memory_bytes([os.getpid()]) - before > 60 * 1024 * 1024


@sees_what_is_mapped
def test_a_file_without_a_name_counts_of_which_a_page_is_mapped(tmp_path: Path) -> None:
    libc, low, page = ctypes.CDLL(None), ctypes.c_void_p(0x1000000), ctypes.c_size_t(mmap.PAGESIZE)
    libc.mmap.restype = ctypes.c_void_p
    before = disk_bytes(tmp_path, [os.getpid()])
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(16 * 1024 * 1024))
        file.flush()
        (tmp_path / "file").unlink()
        # Python's own would keep the file open.
        place = libc.mmap(low, page, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
    try:
        # The kernel writes it with zeros in front.
        assert place < 0x10000000
        assert disk_bytes(tmp_path, [os.getpid()]) - before >= 16 * 1024 * 1024
    finally:
        libc.munmap(ctypes.c_void_p(place), page)


# It has 64 MiB, and 64 MiB in a file in memory of which a page is mapped, and nothing open.
_NAMED = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
kept = bytearray(os.urandom(1024)) * (64 * 1024)
file = os.memfd_create(sys.argv[2] + "-1 ")
os.ftruncate(file, 64 * 1024 * 1024)
os.pwrite(file, kept, 0)
mapped = libc.mmap(0, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
os.close(file)
libc.prctl(15, sys.argv[1].encode("latin-1"), 0, 0, 0)  # PR_SET_NAME
print(flush=True)
sys.stdin.read()
"""
_PLAIN = ("a name", "a file")
# What Python takes for the end of a line and the kernel does not.
_MISLEADING = [("\x0cVmPTE: -999999", "a file"), ("\rVmPTE: -999999", "a file"), ("a name", "\r0")]


@sees_what_is_mapped
@pytest.mark.parametrize("names", [_PLAIN, *_MISLEADING], ids=repr)
def test_what_a_process_and_its_files_are_called_counts_for_nothing(names: tuple[str, str]) -> None:
    command = [sys.executable, "-c", _NAMED, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert 120 * 1024 * 1024 < memory_bytes([process.pid]) < 200 * 1024 * 1024
            assert task_count([process.pid]) == 1
        finally:
            process.communicate()


SHARING = """
import os, signal, sys
kept = os.urandom(64 * 1024 * 1024)
pids = [os.getpid()]
for _ in range(4):
    if (pid := os.fork()) == 0:
        signal.pause()
    pids.append(pid)
print(*pids, flush=True)
sys.stdin.read()
for pid in pids[1:]:
    os.kill(pid, signal.SIGKILL)
"""


@contextmanager
def sharing_processes() -> Iterator[list[int]]:
    with subprocess.Popen([sys.executable, "-c", SHARING], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield list(map(int, process.stdout.readline().split()))
        process.communicate("")


def test_processes_that_share_their_memory_take_it_once() -> None:
    with sharing_processes() as pids:
        counted_each, counted_once = resident_bytes(pids), memory_bytes(pids)
    megabytes = 1024 * 1024
    assert counted_each > 5 * 64 * megabytes
    assert 64 * megabytes < counted_once < 2 * 64 * megabytes


def test_no_more_processes_are_gone_through_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes 15 ms for each of the processes of torch that compile kernels, one for each processor."""
    looked_at, exactly = list[int](), consumption._memory_of

    def look(pid: int) -> int:
        looked_at.append(pid)
        return exactly(pid)

    monkeypatch.setattr(consumption, "_memory_of", look)
    most = 250 * 1024 * 1024
    with sharing_processes() as pids:
        counted_each, found = resident_bytes(pids), memory_bytes(pids, most=most)
    assert counted_each > most >= found
    assert 0 < len(looked_at) < len(pids)


def test_the_default_leaves_memory_to_others(tmp_path: Path) -> None:
    settings = PoolSettings(cache_folder=tmp_path, slots=2)
    assert 2 * _memory_bytes(settings) <= 0.75 * _memory_of_machine()
