from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Artifact, Assignment
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_IDLE
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.composite import CompositePool
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import scripted_command
from tests.toolchains import KeptToolchains


def settings(
    cache_folder: Path, *, script: str = "compile", slots: int = 2, name: str = DEFAULT_ENVIRONMENT
) -> PoolSettings:
    command = scripted_command(script)
    return PoolSettings(cache_folder=cache_folder, slots=slots, command=command, environment_name=name)


async def toolchains(folder: Path) -> list[bytes]:
    """What the slots of a new pool know of the C++ compiler; the scripted child answers anew each time it is asked."""
    pool = LocalPool(settings(folder))
    await pool.start()
    known = [supervisor.toolchain.SerializeToString() for supervisor in pool._supervisors.values()]
    await pool.close()
    return known


async def test_every_slot_works_though_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pool = LocalPool(settings(tmp_path / "file" / "cache"))
    await pool.start()
    try:
        assert [(view.name, view.state) for view in pool.workers()] == [
            ("cpu-0", WORKER_STATE_IDLE),
            ("cpu-1", WORKER_STATE_IDLE),
        ]
        for view in pool.workers():
            made = await pool.run(Assignment(key="k", job=Job()), worker=view.name, on_phase=lambda _: None)
            assert isinstance(made, Artifact)
    finally:
        await pool.close()


async def test_the_compiler_is_tried_once_per_machine(tmp_path: Path) -> None:
    first = await toolchains(tmp_path)
    second = await toolchains(tmp_path)
    assert first[0]
    assert set(first) == set(second)
    assert len(set(first)) == 1


async def test_what_one_machine_has_found_out_another_one_does_not_try(tmp_path: Path) -> None:
    elsewhere, known = KeptToolchains(), []
    for machine in ("one", "other"):
        pool = LocalPool(settings(tmp_path / machine, slots=1), toolchains=elsewhere)
        await pool.start()
        await elsewhere.kept.wait()
        known += [supervisor.toolchain.SerializeToString() for supervisor in pool._supervisors.values()]
        await pool.close()
    assert known[0]
    assert known[0] == known[1]
    # It is there from now on, also for who does not ask.
    assert await toolchains(tmp_path / "other") == [known[0], known[0]]


async def test_workers_say_what_their_start_was_made_of(tmp_path: Path) -> None:
    pool = LocalPool(settings(tmp_path))
    assert {view.start for view in pool.workers()} == {()}
    await pool.start()
    (start,) = {view.start for view in pool.workers()}
    await pool.close()
    assert [phase.name for phase in start] == ["process", "toolchain"]
    assert all(phase.seconds > 0 for phase in start)


def damage(folder: Path) -> None:
    (kept,) = folder.glob("toolchain-*")
    kept.write_bytes(b"\xff\xff\xff")


async def test_damaged_knowledge_is_found_out_anew(tmp_path: Path) -> None:
    before = await toolchains(tmp_path)
    damage(tmp_path)
    after = await toolchains(tmp_path)
    assert after[0]
    assert after[0] != before[0]


async def test_a_pool_without_workers_says_why(tmp_path: Path) -> None:
    pool = LocalPool(settings(tmp_path, script="die-before-ready"))
    with pytest.raises(RuntimeError, match="the last words"):
        await pool.start()
    await pool.close()


async def test_workers_of_several_environments_are_one_pool(tmp_path: Path) -> None:
    pool = CompositePool([LocalPool(settings(tmp_path, slots=1)), LocalPool(settings(tmp_path, slots=2, name="older"))])
    await pool.start()
    try:
        assert [(view.name, view.environment_name) for view in pool.workers()] == [
            ("cpu-0", "default"),
            ("older-cpu-0", "older"),
            ("older-cpu-1", "older"),
        ]
        for view in pool.workers():
            made = await pool.run(Assignment(key="k", job=Job()), worker=view.name, on_phase=lambda _: None)
            assert isinstance(made, Artifact)
            assert made.manifest.worker == view.name
    finally:
        await pool.close()


async def test_an_environment_that_cannot_start_leaves_the_others_at_work(tmp_path: Path) -> None:
    broken = LocalPool(settings(tmp_path, script="die-before-ready", name="broken"))
    pool = CompositePool([LocalPool(settings(tmp_path, slots=1)), broken])
    await pool.start()
    try:
        assert [view.state for view in pool.workers()] == [WORKER_STATE_IDLE, WORKER_STATE_FAILED, WORKER_STATE_FAILED]
        assert "the last words" in (pool.workers()[1].problem or "")
    finally:
        await pool.close()


async def test_pools_none_of_which_can_start_say_why(tmp_path: Path) -> None:
    pools = [LocalPool(settings(tmp_path, script="die-before-ready", slots=1, name=name)) for name in ("one", "other")]
    pool = CompositePool(pools)
    with pytest.raises(RuntimeError, match=r"(?s)environment one could start.*environment other could start"):
        await pool.start()
    await pool.close()


async def test_an_interpreter_with_another_compilefarm_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99.1")
    pool = LocalPool(settings(tmp_path, slots=1))
    with pytest.raises(RuntimeError, match=r"has Compilefarm .*, this farm is 99\.1: install the same"):
        await pool.start()
    await pool.close()
