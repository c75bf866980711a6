"""Workers of the pool on Ray whose children follow a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from compilefarm.cluster.settings import SlotSettings
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Toolchains, WorkerPool
from compilefarm.worker.pool import LocalPool, PoolSettings
from compilefarm.worker.testing import scripted_command

TWO_PROCESSORS: Mapping[str, float] = {"CPU": 2}


def scripted_slots(
    count: int,
    *,
    folder: Path,
    script: str = "compile",
    options: Sequence[str] = (),
    resources: Mapping[str, float] = TWO_PROCESSORS,
    patience_seconds: float = 60.0,
    idle_seconds: float | None = None,
    environment_name: str = DEFAULT_ENVIRONMENT,
    owner: str = "",
    lifetime_seconds: float = 60.0,
    verify: bool = True,
) -> list[SlotSettings]:
    """Settings of workers.

    Args:
        count: how many.
        folder: where they keep what they know of the machine.
        script: of compilefarm.worker.testing, for the children.
        options: of that.
        resources: what each takes of its node, by the names of Ray.
        patience_seconds, idle_seconds, environment_name, owner, lifetime_seconds: see SlotSettings.
        verify: whether they verify.
    """
    command = scripted_command(script, *options)
    return [
        SlotSettings(
            name=f"cpu-{number}",
            environment_name=environment_name,
            make_pool=partial(_pool, folder, command, verify),
            resources=resources,
            restart_seconds=0.5,
            patience_seconds=patience_seconds,
            nodes_come=idle_seconds is not None,
            idle_seconds=idle_seconds,
            owner=owner,
            lifetime_seconds=lifetime_seconds,
        )
        for number in range(count)
    ]


def _pool(folder: Path, command: tuple[str, ...], verify: bool, shares: int, toolchains: Toolchains) -> WorkerPool:
    settings = PoolSettings(cache_folder=folder, shares=shares, command=command, verify=verify)
    return LocalPool(settings, toolchains=toolchains)
