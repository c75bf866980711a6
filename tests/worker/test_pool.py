from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_IDLE
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import child_settings


def settings(cache_folder: Path, *, script: str = "compile", slots: int = 2) -> PoolSettings:
    return PoolSettings(cache_folder=cache_folder, slots=slots, command=child_settings(script).command)


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


def damage(folder: Path) -> None:
    (kept,) = folder.iterdir()
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
