"""`compilefarm serve`: gateway, local workers and embedded store in one process."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

from compilefarm.cli.numbers import not_negative as _not_negative
from compilefarm.cli.numbers import positive as _positive
from compilefarm.cli.safeguards import check_user, sandbox_mode
from compilefarm.cli.sizes import size
from compilefarm.core.errors import FarmError
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, WorkerPool
from compilefarm.service.app import Gateway
from compilefarm.service.clock import SystemClock
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.journal import Journal
from compilefarm.service.logs import FORMATTERS
from compilefarm.service.signing import open_seal
from compilefarm.store.opening import open_store
from compilefarm.worker.joint import JointPool
from compilefarm.worker.pool import LocalPool, PoolSettings, child_command
from compilefarm.worker.sandbox import Mode, choose_sandbox

log = logging.getLogger(__name__)

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
READY_LINE = "compilefarm: ready at "
_DEFAULTS = GatewayConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--listen", default=_DEFAULTS.listen, metavar="HOST:PORT", help="default: %(default)s; port 0: any free one")
    option(
        "--store",
        default=str(_default_store()),
        metavar="STORE",
        help="keep artifacts there: a directory, or s3://BUCKET/PREFIX?endpoint=URL; default: %(default)s",
    )
    option(
        "--read-only",
        action="store_true",
        help="serve what is stored, write nothing there, and compile nothing",
    )
    option(
        "--store-size-limit",
        type=size,
        metavar="SIZE",
        help="evict what was used least recently when the store is larger, for example 50GB; default: keep all",
    )
    option(
        "--cache-memory",
        type=size,
        default="256MB",
        metavar="SIZE",
        help="keep what was read from the store lately in memory, up to this size; 0B: nothing; default: %(default)s",
    )
    option(
        "--state",
        type=Path,
        metavar="DIR",
        help="keep prewarm jobs that were accepted there until they are done; default: a folder in ~/.local/state",
    )
    option("--device", choices=("auto", "cpu", "cuda"), default="auto", help="compile for; auto: GPUs if there are any")
    option(
        "--slots",
        type=_positive,
        default=1,
        metavar="N",
        help="compiles at a time, for each environment, and per GPU on CUDA; default: 1",
    )
    option(
        "--worker",
        action="append",
        type=_worker,
        default=[],
        dest="workers",
        metavar="ENVIRONMENT=PYTHON",
        help="further workers, of an interpreter with another torch and the same Compilefarm; repeat it for several",
    )
    option(
        "--compile-timeout",
        type=_positive,
        default=3600,
        metavar="SECONDS",
        help="end a compile that takes longer; default: %(default)s",
    )
    option(
        "--verify",
        choices=("before", "after", "off"),
        default=_DEFAULTS.verify,
        help="check each artifact in a clean process before it is served, or afterwards, and withdraw it if it fails; "
        "default: %(default)s",
    )
    option(
        "--grace",
        type=_not_negative,
        default=10,
        metavar="SECONDS",
        help="what running compiles get to finish after SIGTERM; default: %(default)s",
    )
    option(
        "--queue-limit",
        type=_positive,
        default=_DEFAULTS.max_queued_jobs,
        metavar="JOBS",
        help="refuse a compile when so many that are as urgent wait; default: %(default)s",
    )
    option(
        "--tenant-limit",
        type=_positive,
        default=_DEFAULTS.max_queued_jobs_of_tenant,
        metavar="JOBS",
        help="the same for one tenant, so that none fills the queue; default: %(default)s",
    )
    option(
        "--tenant-slots",
        type=_positive,
        default=_DEFAULTS.max_running_jobs_of_tenant,
        metavar="JOBS",
        help="compiles of one tenant at a time; default: all workers but one, where --auth lists several tenants",
    )
    option(
        "--tenant-upload-limit",
        type=size,
        metavar="SIZE",
        help="what one tenant may send within an hour, for example 5GB; default: as much as it likes",
    )
    option(
        "--orphan-grace",
        type=_not_negative,
        default=int(_DEFAULTS.orphan_seconds),
        metavar="SECONDS",
        help="end a compile when nobody has waited for it that long, unless it is a prewarm; default: %(default)s",
    )
    option(
        "--memory-limit",
        type=_positive,
        default=None,
        metavar="GB",
        help="host memory that a compile may take beyond what its process has before it, all processes that it starts "
        "together, looked at each second; default: an equal share for each slot of three quarters of this machine's",
    )
    option(
        "--disk-limit",
        type=size,
        default="20GB",
        metavar="SIZE",
        help="what the temporary files of a compile may take, looked at each second; default: %(default)s",
    )
    option(
        "--control-group",
        type=Path,
        metavar="DIR",
        help="make a control group for each compile in this one (version 2, delegated to this user), so "
        "that the kernel bounds its memory and processes; default: they are looked at each second",
    )
    option(
        "--sandbox",
        choices=get_args(Mode),
        default="auto",
        help="shut compiles off from network and files with bubblewrap; auto: where it works, and with --auth or an "
        "address beyond this host it has to; off: never; default: %(default)s",
    )
    option(
        "--allow-root",
        action="store_true",
        help="run as root, as which compiles then run, too: a sandbox that fails would leave them all its rights",
    )
    option(
        "--import",
        action="append",
        default=[],
        dest="modules",
        metavar="MODULE",
        help="a Python module that registers operators which graphs may call; repeat it for several",
    )
    option(
        "--allow-triton-kernels",
        action="store_true",
        help="take graphs with Triton kernels of users; these are source code, which workers run",
    )
    option(
        "--metrics-listen",
        default=_DEFAULTS.metrics_listen,
        metavar="HOST:PORT",
        help="serve figures for Prometheus there, at /metrics; default: nowhere",
    )
    option("--record", default="", metavar="DIR", help="record every request there, for `compilefarm prewarm`")
    option("--log-format", choices=tuple(FORMATTERS), default="text", help="of log lines; default: %(default)s")
    option(
        "--auth",
        default=_DEFAULTS.auth_file,
        metavar="FILE",
        help="let in only the callers that this file lists, to do what their roles allow; it is read again when it "
        "changes; `compilefarm keys token` makes tokens; default: everybody may do anything",
    )
    option(
        "--tls-certificate",
        default=_DEFAULTS.tls_certificate,
        metavar="FILE",
        help="speak TLS with this certificate, in PEM, followed by those that certify it; it is read again when it "
        "changes, as are the next two",
    )
    option("--tls-key", default=_DEFAULTS.tls_key, metavar="FILE", help="the private key of the certificate, in PEM")
    option(
        "--tls-client-ca",
        default=_DEFAULTS.tls_client_ca,
        metavar="FILE",
        help="ask callers for certificates of this authority, and take them for whom --auth lists under a name in the "
        "certificate",
    )
    option(
        "--signing-key",
        metavar="FILE",
        help="sign artifacts with this key (`compilefarm keys new`), and serve only those with a signature of it",
    )
    option(
        "--signer",
        metavar="unix:PATH",
        help="the same, with a key that another process has: `compilefarm signer`",
    )
    option(
        "--trusted-key",
        action="append",
        default=[],
        dest="trusted_keys",
        metavar="ed25519:...",
        help="serve what this public key has signed, too, such as the key before; repeat it for several",
    )
    option("--insecure", action="store_true", help="listen beyond this host although callers are not authenticated")


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT."""
    _set_up_log(arguments.log_format)
    try:
        return asyncio.run(_serve(arguments))
    except (FarmError, RuntimeError) as error:
        print(f"compilefarm serve: {error}", file=sys.stderr)
        return 1


def _set_up_log(log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def gateway_config(arguments: argparse.Namespace) -> GatewayConfig:
    """What the options say about the gateway."""
    return GatewayConfig(
        listen=arguments.listen,
        metrics_listen=arguments.metrics_listen,
        insecure=arguments.insecure,
        auth_file=arguments.auth,
        tls_certificate=arguments.tls_certificate,
        tls_key=arguments.tls_key,
        tls_client_ca=arguments.tls_client_ca,
        read_only=arguments.read_only,
        record=arguments.record,
        max_queued_jobs=arguments.queue_limit,
        max_queued_jobs_of_tenant=arguments.tenant_limit,
        max_running_jobs_of_tenant=arguments.tenant_slots,
        max_tenant_upload_bytes=arguments.tenant_upload_limit,
        orphan_seconds=arguments.orphan_grace,
        verify=arguments.verify,
    )


async def _serve(arguments: argparse.Namespace) -> int:
    check_user(allow_root=arguments.allow_root)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    seal = await open_seal(key_file=arguments.signing_key, signer=arguments.signer, trusted_keys=arguments.trusted_keys)
    store = await open_store(
        arguments.store,
        size_limit_bytes=arguments.store_size_limit,
        cache_bytes=arguments.cache_memory,
        read_only=arguments.read_only,
        seal=seal,
    )
    log.info("starting workers; artifacts are kept in %s", (await store.usage()).location)
    journal = Journal(state_folder(arguments), clock=SystemClock())
    gateway = Gateway(
        gateway_config(arguments),
        store=store,
        seal=seal,
        pool=await asyncio.to_thread(_pool, arguments),
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
        await gateway.close(grace_seconds=arguments.grace)
        journal.close()


def interpreters(arguments: argparse.Namespace) -> dict[str, str]:
    """What the options say about the environments of workers: the interpreter of each, by name.

    Raises:
        CannotStart: two have one name.
    """
    pythons = {DEFAULT_ENVIRONMENT: sys.executable}
    for name, python in arguments.workers:
        if name in pythons:
            raise CannotStart(f"there are two environments {name}: give each --worker a name of its own")
        pythons[name] = python
    return pythons


def _pool(arguments: argparse.Namespace) -> WorkerPool:
    pythons = interpreters(arguments)
    mode = sandbox_mode(arguments.sandbox, gateway_config(arguments))
    devices = {name: _cuda_devices(arguments.device, python=python) for name, python in pythons.items()}
    shares = arguments.slots * sum(max(len(found), 1) for found in devices.values())
    pools = []
    for name, python in pythons.items():
        sandbox, no_sandbox = choose_sandbox(mode, interpreter=python, gpu=bool(devices[name]))
        if sandbox is None:
            log.warning(
                "compiles of the environment %s can reach the network and the files of this user: no sandbox (%s)",
                name,
                no_sandbox,
            )
        settings = PoolSettings(
            environment_name=name,
            cuda_devices=devices[name],
            slots=arguments.slots,
            shares=shares,
            cache_folder=_cache_folder(),
            compile_seconds=arguments.compile_timeout,
            verify=arguments.verify != "off",
            memory_bytes=None if arguments.memory_limit is None else arguments.memory_limit * 10**9,
            disk_bytes=arguments.disk_limit,
            control_group=arguments.control_group,
            modules=tuple(arguments.modules),
            triton_kernels=arguments.allow_triton_kernels,
            sandbox=sandbox,
            no_sandbox=no_sandbox,
            command=child_command(python),
        )
        pools.append(LocalPool(settings))
    return JointPool(pools)


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


def _default_store() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "compilefarm" / "store"


def state_folder(arguments: argparse.Namespace) -> Path:
    """Where accepted jobs are kept; another folder for each farm of this user, unless one is named."""
    if arguments.state is not None:
        return Path(arguments.state)
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    farm = hashlib.sha256(f"{os.path.abspath(arguments.store)}\n{arguments.listen}".encode()).hexdigest()[:16]
    return base / "compilefarm" / farm


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compilefarm"


def _worker(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if not _ENVIRONMENT_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with a name and =, such as torch-2.11=/venv/python")
    if shutil.which(python) is None:
        raise argparse.ArgumentTypeError(f"{python!r}, the interpreter of {name}, is no program")
    # A relative path would mean something else in the folder of a child.
    return name, os.path.abspath(python) if os.path.dirname(python) else python
