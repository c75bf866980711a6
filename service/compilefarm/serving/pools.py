"""The workers of a farm: one pool of local ones for each interpreter."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

from compilefarm.core.pool import WorkerPool
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.safeguards import sandbox_mode
from compilefarm.worker.composite import CompositePool
from compilefarm.worker.pool import LocalPool, PoolSettings, child_command
from compilefarm.worker.sandbox import choose_sandbox

log = logging.getLogger(__name__)


def make_pool(config: ServeConfig) -> WorkerPool:
    """Makes the pool of a farm; it has no children yet.

    Raises:
        CannotStart: two environments have one name.
        RuntimeError: an interpreter has no torch, no GPU where one was asked for, or no sandbox.
    """
    pythons = config.interpreters()
    mode = sandbox_mode(config.sandbox, config.gateway())
    devices = {name: _cuda_devices(config.device, python=python) for name, python in pythons.items()}
    shares = config.slots * sum(max(len(found), 1) for found in devices.values())
    pools = []
    for name, python in pythons.items():
        sandbox, no_sandbox = choose_sandbox(
            mode, interpreter=python, gpu=bool(devices[name]), hidden=kept_from_compiles(config)
        )
        if sandbox is None:
            log.warning(
                "compiles of the environment %s can reach the network and the files of this user: no sandbox (%s)",
                name,
                no_sandbox,
            )
        settings = PoolSettings(
            environment_name=name,
            cuda_devices=devices[name],
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
        )
        pools.append(LocalPool(settings))
    return CompositePool(pools)


def kept_from_compiles(config: ServeConfig) -> list[Path]:
    """Returns the paths that children must not see: store, state, callers, keys and the socket of the signer."""
    files = (config.auth, config.signing_key, (config.signer or "").removeprefix("unix:"), config.tls_key)
    store = [] if "://" in config.store else [config.store]
    return [Path(place).absolute() for place in (*store, *files, config.state_folder()) if place]


def _cuda_devices(device: str, *, python: str) -> tuple[str, ...]:
    """The GPUs that an interpreter compiles on, as CUDA_VISIBLE_DEVICES names them."""
    if device == "cpu":
        return ()
    # In another process: a service that holds a CUDA context takes memory from the jobs.
    program = "import torch; print(torch.cuda.device_count())"
    result = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"torch cannot be imported by {python}: {result.stderr.strip()[-500:]}")
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
