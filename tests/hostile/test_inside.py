"""What a child that was taken over can do from inside its sandbox; as whoever runs the tests, and as nobody if that is
the administrator.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compilefarm.worker.sandbox import SandboxUnavailable, open_sandbox
from tests.hostile.as_nobody import why_nobody_cannot_run

AS_NOBODY = (sys.executable, str(Path(__file__).with_name("as_nobody.py")))
_HIDDEN = ("kcore", "keys", "key-users", "timer_list", "kallsyms", "kmsg", "sched_debug", "kpageflags", "vmallocinfo")

Found = dict[str, Any]


@pytest.fixture(scope="module", params=["this user", "nobody"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the probe says."""
    try:
        open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")
    if request.param == "this user":
        return _probe(tmp_path_factory.mktemp("host"), run=(sys.executable,))
    if (problem := why_nobody_cannot_run()) is not None:
        pytest.skip(problem)
    return _probe(tmp_path_factory.mktemp("host"), run=AS_NOBODY)


def _probe(folder: Path, *, run: Sequence[str]) -> Found:
    name = f"compilefarm-{os.getpid()}"
    folder.chmod(0o777)
    (folder / "key").write_text("hush")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0{name}")
        named.listen()
        reachable = {
            "HIDDEN": ":".join(_HIDDEN),
            "PORT": str(server.getsockname()[1]),
            "SIGNING_KEY": str(folder / "key"),
            "SOCKET_NAME": name,
            "STORE": str(folder),
            "STRANGER": str(os.getpid()),
        }
        told = subprocess.run(
            [*run, str(Path(__file__).with_name("inside.py"))],
            env={**os.environ, **reachable, "TMPDIR": "/tmp"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert told.returncode == 0, told.stderr
    found: Found = json.loads(told.stdout)
    return found


def test_no_setting_of_the_kernel_can_be_written(found: Found) -> None:
    assert found["writable"] == []


def test_nothing_of_the_machine_can_be_changed(found: Found) -> None:
    # Whoever owns a file may change its mode, for everybody: where root runs the farm, that of a device, too.
    assert found["changed"] == []


def test_it_is_ended_before_the_farm_when_memory_runs_out_and_takes_that_not_back(found: Found) -> None:
    assert found["oom score"] >= 500
    assert found["own"] == []


def test_what_tells_of_the_machine_is_hidden(found: Found) -> None:
    # EACCES where a device that cannot be opened hides it, ENOENT where this kernel has no such file.
    assert set(found["readable"].values()) <= {"EACCES", "ENOENT"}, found["readable"]


def test_system_calls_that_lead_out_are_refused(found: Found) -> None:
    # As on older kernels: by the second, the kernel takes a gigabyte at a call that counts as nobody's.
    older = {"clone3": "ENOSYS", "table of waiting threads": "EINVAL", "pages of files that are mapped": "EINVAL"}
    refused = dict.fromkeys(found["calls"], "EPERM") | older
    assert found["calls"] == refused
    assert len(refused) > 60


def test_nothing_of_the_host_is_reached(found: Found) -> None:
    # What refuses it first differs by user.
    assert found["places"].pop("change the first process") in ("EACCES", "EROFS")
    assert found["places"] == {
        "look at STORE": "ENOENT",
        "look at SIGNING_KEY": "ENOENT",
        "look at /etc/passwd": "ENOENT",
        "look at /home": "ENOENT",
        "look at /run": "ENOENT",
        "look at /var": "ENOENT",
        "signal a stranger": "ESRCH",
        "read of a stranger": "ENOENT",
        "connect": "EAFNOSUPPORT",
        "connect outside": "EAFNOSUPPORT",
        "connect by name": "ECONNREFUSED",
        "another user": "EINVAL",
        "a device": "EPERM",
        "a terminal": "ENOENT",
        "a session for a process that it starts": "EPERM",
        "to be less nice": "EACCES",
        "write to the root": "EROFS",
        "write to /sys": "EROFS",
        "write to its folder": "done",
    }


def test_no_other_user_gets_at_what_it_leaves(found: Found) -> None:
    # A program with the rights of the farm's user, in a folder that it has opened to everybody.
    assert found["planted"] == []


def test_others_are_started_beside_one_that_holds_all_descriptors_it_can(found: Found) -> None:
    # The kernel counts those of a user: the farm could send its fork server none any more.
    assert found["another child"] == "ready"


@pytest.mark.parametrize("process", ["self", "1"])
def test_its_end_starts_no_program_outside(found: Found, process: str) -> None:
    # What core_pattern names runs as the administrator with what a process left; a limit of 1 prevents it (core(5)).
    assert found["cores"][process] == ["1", "1"]


def test_it_cannot_make_files_in_memory_without_an_end(found: Found) -> None:
    # Each takes a kilobyte of the kernel's memory, which counts as nobody's: there could be three gigabytes of them.
    assert 0 < found["files in memory"] < 5000


def test_it_leaves_timers_to_others(found: Found) -> None:
    # Those of its user count together, whatever the sandbox: the farm, and its user's other programs, could make none.
    assert 0 < found["timers"] < 2000


def test_it_sees_its_own_processes_and_no_devices_of_the_machine(found: Found) -> None:
    # What holds the sandbox open, and the child.
    assert len(found["processes"]) == 2
    assert set(found["devices"]) <= {
        "console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    }  # fmt: skip


@pytest.mark.parametrize("process", ["self", "1"])
def test_it_has_no_privilege_and_no_way_to_get_one(found: Found, process: str) -> None:
    status = found["status"][process]
    assert {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
