"""`compilefarm serve`: gateway, local workers and embedded store in one process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from compilefarm.cli.flags import UnusableFile
from compilefarm.cli.safeguards import check_user, sandbox_mode
from compilefarm.cli.serve_config import ServeConfig, read_config
from compilefarm.cli.serve_config import add_arguments as add_arguments
from compilefarm.core.errors import FarmError
from compilefarm.core.pool import WorkerPool
from compilefarm.service.app import Gateway
from compilefarm.service.clock import SystemClock
from compilefarm.service.journal import Journal
from compilefarm.service.logs import FORMATTERS
from compilefarm.service.signing import open_signing_policy
from compilefarm.store.opening import open_store
from compilefarm.worker.composite import CompositePool
from compilefarm.worker.pool import LocalPool, PoolSettings, child_command
from compilefarm.worker.sandbox import choose_sandbox

log = logging.getLogger(__name__)

READY_LINE = "compilefarm: ready at "


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT."""
    try:
        config = read_config(arguments)
        _set_up_log(config.log_format)
        return asyncio.run(_serve(config))
    except UnusableFile as error:
        print(f"compilefarm serve: {error}", file=sys.stderr)
        return 2
    except (FarmError, RuntimeError) as error:
        print(f"compilefarm serve: {error}", file=sys.stderr)
        return 1


def _set_up_log(log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


async def _serve(config: ServeConfig) -> int:
    check_user(allow_root=config.allow_root)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signing = await open_signing_policy(
        key_file=config.signing_key, signer=config.signer, trusted_keys=config.trusted_keys
    )
    store = await open_store(
        config.store,
        size_limit_bytes=config.store_size_limit,
        cache_bytes=config.cache_memory,
        read_only=config.read_only,
        signing=signing,
    )
    log.info("starting workers; artifacts are kept in %s", (await store.usage()).location)
    journal = Journal(config.state_folder(), clock=SystemClock())
    gateway = Gateway(
        config.gateway(),
        store=store,
        signing=signing,
        pool=await asyncio.to_thread(_pool, config),
        journal=journal,
    )
    starting = asyncio.create_task(gateway.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        starting.result()
        print(f"{READY_LINE}{gateway.address}", flush=True)
        if gateway.metrics_address:
            log.info("metrics are at http://%s/metrics", gateway.metrics_address)
        await stopping
        return 0
    finally:
        stopping.cancel()
        await gateway.close(grace_seconds=config.grace)
        journal.close()


def _pool(config: ServeConfig) -> WorkerPool:
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
            cache_folder=_cache_folder(),
            compile_seconds=config.compile_timeout,
            verify=config.verify != "off",
            memory_bytes=None if config.memory_limit is None else config.memory_limit * 10**9,
            disk_bytes=config.disk_limit,
            control_group=config.control_group,
            modules=tuple(config.modules),
            triton_kernels=config.allow_triton_kernels,
            sandbox=sandbox,
            no_sandbox=no_sandbox,
            command=child_command(python),
        )
        pools.append(LocalPool(settings))
    return CompositePool(pools)


def kept_from_compiles(config: ServeConfig) -> list[Path]:
    """What the farm keeps for itself on this machine, wherever that is."""
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


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compilefarm"
