"""The workers of a farm on this host: one pool for each interpreter."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

from compilefarm.core.pool import Toolchains, WorkerPool
from compilefarm.core.starts import StartClock
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.safeguards import sandbox_mode
from compilefarm.worker.composite import CompositePool
from compilefarm.worker.pool import LocalPool, PoolSettings, child_command
from compilefarm.worker.sandbox import Sandbox, choose_sandbox

log = logging.getLogger(__name__)


def make_pool(config: ServeConfig, *, toolchains: Toolchains) -> WorkerPool:
    """Makes the pool of a farm with its workers on this host; it has no children yet.

    Args:
        config: the settings of the farm.
        toolchains: what is known of C++ compilers elsewhere.

    Raises:
        CannotStart: two environments have one name.
        RuntimeError: an interpreter has no torch, no GPU where one was asked for, or no sandbox.
    """
    pythons = config.interpreters()
    clock = StartClock()
    devices = {name: cuda_devices(config.device, python=python) for name, python in pythons.items()}
    clock.end("devices")
    shares = config.slots * sum(max(len(found), 1) for found in devices.values())
    pools = [
        local_pool(
            config,
            environment_name=name,
            devices=devices[name],
            shares=shares,
            toolchains=toolchains,
            clock=StartClock(phases=clock.phases),
        )
        for name in pythons
    ]
    return CompositePool(pools)


def local_pool(
    config: ServeConfig,
    *,
    environment_name: str,
    devices: tuple[str, ...],
    shares: int,
    toolchains: Toolchains,
    clock: StartClock,
) -> LocalPool:
    """Makes the pool of one environment on this host.

    Args:
        config: the settings of the farm.
        environment_name: which of its environments.
        devices: the GPUs, as CUDA_VISIBLE_DEVICES names them; empty compiles for the CPU.
        shares: among how many jobs at a time this host is shared.
        toolchains: what is known of C++ compilers elsewhere.
        clock: of the start of its workers, which has begun.

    Raises:
        RuntimeError: there is no sandbox.
    """
    python = config.interpreters()[environment_name]
    sandbox, no_sandbox = _sandbox_of(config, environment_name=environment_name, python=python, gpu=bool(devices))
    clock.end("sandbox")
    return LocalPool(
        PoolSettings(
            environment_name=environment_name,
            cuda_devices=devices,
            slots=config.slots,
            shares=shares,
            cache_folder=cache_folder(),
            compile_seconds=config.compile_timeout,
            verify=config.verify != "off",
            memory_bytes=None if config.memory_limit is None else config.memory_limit * 10**9,
            disk_bytes=config.disk_limit,
            control_group=config.control_group,
            modules=tuple(config.modules),
            libraries=config.libraries,
            triton_kernels=config.allow_triton_kernels,
            sandbox=sandbox,
            no_sandbox=no_sandbox,
            command=child_command(python),
            prepared=clock.phases,
        ),
        toolchains=toolchains,
    )


def _sandbox_of(config: ServeConfig, *, environment_name: str, python: str, gpu: bool) -> tuple[Sandbox | None, str]:
    """The sandbox for compiles of an environment, or None and why there is none, which the log says, too."""
    sandbox, no_sandbox = choose_sandbox(
        sandbox_mode(config.sandbox, config.gateway(), ray_address=config.ray_address),
        interpreter=python,
        gpu=gpu,
        hidden=kept_from_compiles(config),
    )
    if sandbox is None:
        log.warning(
            "compiles of the environment %s can reach the network and the files of this user: no sandbox (%s)",
            environment_name,
            no_sandbox,
        )
    return sandbox, no_sandbox


def kept_from_compiles(config: ServeConfig) -> list[Path]:
    """Returns the paths that children must not see: store, state, recordings, callers, keys and the signer's socket."""
    files = (config.auth, config.signing_key, (config.signer or "").removeprefix("unix:"), config.tls_key)
    folders = (config.record, config.state_folder(), "" if "://" in config.store else config.store)
    return [Path(place).expanduser().absolute() for place in (*files, *folders) if place]


def cuda_devices(device: str, *, python: str) -> tuple[str, ...]:
    """Returns the GPUs that an interpreter compiles on, as CUDA_VISIBLE_DEVICES names them.

    Args:
        device: of `serve --device`.
        python: the interpreter.

    Raises:
        RuntimeError: it has no torch, sees no GPU where one was asked for, or its driver does not work.
    """
    if device == "cpu":
        return ()
    # -P: not what lies in the folder in which the farm was started.
    program = [python, "-P", "-m", "compilefarm.worker.gpus"]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{python} cannot look for GPUs: {result.stderr.strip()[-500:]}")
    count = int(result.stdout.split()[-1])
    if count == 0 and device == "cuda":
        raise RuntimeError(
            f"the torch of {python} sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(visible[:count] or map(str, range(count)))


def cache_folder() -> Path:
    """Returns the folder in which workers of this user keep what they share between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compilefarm"
