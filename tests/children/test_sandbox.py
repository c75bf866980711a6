"""Children in a sandbox, started as a supervisor starts them: what they can do, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.errors import ProcessDied
from compilefarm.core.pool import Artifact
from compilefarm.worker.process import ChildProcess
from compilefarm.worker.sandbox import Sandbox, SandboxUnavailable, choose_sandbox, open_sandbox
from compilefarm.worker.supervisor import Supervisor
from compilefarm.worker.testing import child_settings
from tests.children.jobs import JOB, hanging_job, supervising
from tests.processes import alive, descendants


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return opened_sandbox()


def opened_sandbox() -> Sandbox:
    """One for this interpreter, with the paths that it has by now."""
    try:
        return open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")


async def run(supervisor: Supervisor) -> str:
    """What the child returns."""
    artifact = await supervisor.run(JOB, on_phase=lambda _: None)
    assert isinstance(artifact, Artifact), artifact
    (content,) = artifact.blobs.values()
    return content.decode()


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a child could reach: a port of this machine, a file of this user, a process."""
    secret = tmp_path / "secret"
    secret.write_text("hush")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"PORT": str(server.getsockname()[1]), "SECRET": str(secret), "STRANGER": str(os.getpid())}


async def outcomes(sandbox: Sandbox | None, *folders: Path | str, **variables: str) -> dict[str, str]:
    """What comes of it when a child tries to reach what is around it, and to write into folders."""
    tried = {**variables, "FOLDERS": ":".join(map(str, folders))}
    async with supervising(child_settings("reach-out", sandbox=sandbox, **tried)) as supervisor:
        return dict(line.split(": ") for line in (await run(supervisor)).splitlines())


async def test_a_child_reaches_nothing_but_its_own(sandbox: Sandbox, variables: dict[str, str], tmp_path: Path) -> None:
    assert await outcomes(sandbox, tmp_path, "/usr", "/", "/dev", "/etc", sys.prefix, **variables) == {
        "connect": "OSError",
        "read": "FileNotFoundError",
        "list": "FileNotFoundError",
        "signal": "ProcessLookupError",
        "change root": "PermissionError",
        f"write to {tmp_path}": "FileNotFoundError",
        # It is a file system that cannot be written.
        **{f"write to {folder}": "OSError" for folder in ("/usr", "/", "/dev", "/etc", sys.prefix)},
        "write to /tmp": "done",
    }


async def test_without_a_sandbox_it_reaches_all_of_it(variables: dict[str, str], tmp_path: Path) -> None:
    reached = await outcomes(None, tmp_path, **variables)
    names = ("connect", "read", "list", "signal", f"write to {tmp_path}")
    assert {name: reached[name] for name in names} == dict.fromkeys(names, "done")


@pytest.mark.parametrize("entry", [".", "", "/"])
async def test_a_path_of_modules_does_not_open_the_root(
    entry: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{entry}:{os.environ.get('PYTHONPATH', '')}")
    reached = await outcomes(opened_sandbox(), "/dev", **variables)
    assert (reached["read"], reached["write to /dev"]) == ("FileNotFoundError", "OSError")


@pytest.mark.parametrize(("hidden", "error"), [("kept", "FileNotFoundError"), ("kept/secret", "PermissionError")])
async def test_what_the_farm_keeps_is_hidden_in_what_can_be_read(
    hidden: str, error: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "kept" / "secret"
    secret.parent.mkdir()
    secret.write_text("hush")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    sandbox = opened_sandbox()
    tried = {**variables, "SECRET": str(secret)}
    assert (await outcomes(sandbox, **tried))["read"] == "done"
    reached = await outcomes(replace(sandbox, hidden=(tmp_path / hidden,)), tmp_path / "kept", **tried)
    assert reached["read"] == error
    assert reached[f"write to {tmp_path / 'kept'}"] == "OSError"


async def test_a_child_does_not_reach_the_files_of_programs(sandbox: Sandbox) -> None:
    # What is run is mounted as it was where it was started, so that a sandbox that can only be read does not help.
    programs = (sys.executable, sandbox.program)
    before = [os.stat(program).st_ctime_ns for program in programs]
    async with supervising(child_settings("touch-the-programs", sandbox=sandbox)) as supervisor:
        await run(supervisor)
    assert [os.stat(program).st_ctime_ns for program in programs] == before


async def test_what_lies_in_a_folder_goes_with_it(sandbox: Sandbox, tmp_path: Path) -> None:
    settings = replace(child_settings("bury", sandbox=sandbox), scratch_folder=tmp_path)
    async with supervising(settings) as supervisor:
        await run(supervisor)
    assert os.listdir(tmp_path) == []


async def test_a_child_finds_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    async with supervising(child_settings("leave-behind", sandbox=sandbox)) as supervisor:
        first, *others = [await run(supervisor) for _ in range(3)]
    assert "'name of a socket': 'done'" in first
    # The farm goes before them, on each processor.
    assert f"'niceness': {os.nice(0) + 10}" in first
    assert others == [first, first]


async def test_who_has_a_device_may_name_its_threads(sandbox: Sandbox) -> None:
    # The driver of NVIDIA writes to the files of its process, and does not start where it cannot.
    sandbox = replace(sandbox, devices=(Path("/dev/zero"),))
    async with supervising(child_settings("leave-behind", sandbox=sandbox)) as supervisor:
        assert "'name of a thread': 'done'" in await run(supervisor)


async def test_a_child_that_stops_its_group_is_ended(sandbox: Sandbox) -> None:
    before = descendants(os.getpid())
    async with supervising(child_settings("stop-the-group", sandbox=sandbox)) as supervisor:
        job = await hanging_job(supervisor)
        processes = descendants(os.getpid()) - before
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        (_fork_server,) = alive(processes)


async def test_a_child_knows_its_own_paths_and_no_secret(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    async with supervising(child_settings("print-variables", sandbox=sandbox)) as supervisor:
        said = (await run(supervisor)).splitlines()
    assert {"HOME=/tmp", "TMPDIR=/tmp", "TORCHINDUCTOR_CACHE_DIR=/tmp/inductor"} <= set(said)
    assert not any("hush" in line for line in said)


@pytest.mark.parametrize(("script", "words"), [("die", "SIGSEGV"), ("die", "the last words"), ("exit", "status 3")])
async def test_how_a_child_ended_is_said_as_without_a_sandbox(sandbox: Sandbox, script: str, words: str) -> None:
    async with supervising(child_settings(script, sandbox=sandbox)) as supervisor:
        with pytest.raises(ProcessDied, match=words):
            await run(supervisor)


async def test_cancelling_ends_all_that_runs_inside(sandbox: Sandbox) -> None:
    before = descendants(os.getpid())
    async with supervising(child_settings("hang-with-grandchild", sandbox=sandbox)) as supervisor:
        job = await hanging_job(supervisor)
        (child,) = [child for child in supervisor._compiler._children if "grandchild" in child.log_tail]
        # The fork server, bubblewrap and what holds its place, the child outside and inside, and the grandchild.
        processes = descendants(os.getpid()) - before
        assert len(alive(processes)) == 6
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        (fork_server,) = alive(processes)
        assert fork_server != child.pid


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_a_start_that_is_called_off_leaves_nothing(
    sandbox: Sandbox, turns: int, is_running: bool, tmp_path: Path
) -> None:
    settings = replace(child_settings("compile", sandbox=sandbox), scratch_folder=tmp_path)
    before = descendants(os.getpid())
    if is_running:
        await (await ChildProcess.start(settings)).end()
    starting = asyncio.create_task(ChildProcess.start(settings))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await starting).end()
    await settings.server.close()
    # The kernel ends in its own time what was forked for nobody.
    while alive(descendants(os.getpid()) - before):
        pass
    assert not os.listdir(tmp_path)


SUPERVISOR = """
import asyncio, sys
from compilefarm.worker.process import ChildProcess
from compilefarm.worker.sandbox import open_sandbox
from compilefarm.worker.testing import child_settings
from tests.processes import alive, descendants

async def main():
    sandbox = open_sandbox(interpreter=sys.executable, gpu=False)
    settings = child_settings("compile", sandbox=sandbox)
    child = await ChildProcess.start(settings)
    await child.ready()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_child_ends_with_a_supervisor_that_is_killed(sandbox: Sandbox) -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        processes = descendants(supervisor.pid)
        # The fork server, bubblewrap and what holds its place, the child outside and inside.
        assert len(processes) == 5
        supervisor.kill()
    # The kernel ends them in its own time.
    while alive(processes):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator has no limit of processes (setrlimit(2))")
async def test_processes_are_counted(sandbox: Sandbox) -> None:
    async with supervising(child_settings("fork-for-ever", "--process-limit=20", sandbox=sandbox)) as supervisor:
        assert 0 < int(await run(supervisor)) < 20


def test_a_machine_without_bubblewrap_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("compilefarm.worker.sandbox.find_bubblewrap", lambda: None)
    assert choose_sandbox("auto", interpreter=sys.executable, gpu=False) == (None, "bubblewrap is not installed")
    with pytest.raises(SandboxUnavailable, match="no sandbox: bubblewrap is not installed; install it"):
        choose_sandbox("require", interpreter=sys.executable, gpu=False)


def test_a_machine_that_forbids_user_namespaces_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bubblewrap = tmp_path / "bwrap"
    bubblewrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    bubblewrap.chmod(0o755)
    monkeypatch.setattr("compilefarm.worker.sandbox.find_bubblewrap", lambda: str(bubblewrap))
    sandbox, why = choose_sandbox("auto", interpreter=sys.executable, gpu=False)
    assert sandbox is None
    assert "No permissions to create new namespace" in why


_OPEN = """
import sys
from compilefarm.worker.sandbox import SandboxUnavailable, open_sandbox
try:
    open_sandbox(interpreter=sys.executable, gpu=False)
except SandboxUnavailable as error:
    print(f"{error}; {error.remedy}")
"""


def _forbid_cores() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Who runs as root could raise the limit again, but for this: PR_CAPBSET_DROP of CAP_SYS_RESOURCE.
    assert os.geteuid() != 0 or ctypes.CDLL(None).prctl(24, 24, 0, 0, 0) == 0


@pytest.mark.usefixtures("sandbox")
def test_a_limit_of_cores_with_which_programs_outside_are_started_is_told() -> None:
    command = [sys.executable, "-c", _OPEN]
    said = subprocess.run(command, preexec_fn=_forbid_cores, capture_output=True, text=True, check=True).stdout
    assert "cores may have no byte here" in said
    assert "ulimit -Hc 1" in said


def test_whoever_wants_none_gets_none() -> None:
    assert choose_sandbox("off", interpreter=sys.executable, gpu=False) == (None, "serve --sandbox off")
