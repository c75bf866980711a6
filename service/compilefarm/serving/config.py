"""The settings of `compilefarm serve`: one table, from which flags, configuration file and reference follow."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from compilefarm.core.libraries import KNOWN_LIBRARIES, names_in
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, DeclaredEnvironment
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.logs import FORMATTERS
from compilefarm.serving.environments import ENVIRONMENT_NAME, environments
from compilefarm.serving.flags import add_flags, flag, flags_of, given_flags, read_file
from compilefarm.serving.numbers import not_negative, positive
from compilefarm.serving.sizes import size
from compilefarm.worker.sandbox import Mode

_DEFAULTS = GatewayConfig()
_ADDRESSES, _STORE, _COMPILES = "addresses and access", "store", "compiles"
_SHARES, _SANDBOX, _OPERATION = "queue and shares", "sandbox and limits of a compile", "operation"


def _default_store() -> str:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return str(Path(base) / "compilefarm" / "store")


def _worker(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if not ENVIRONMENT_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with a name and =, such as torch-2.11=/venv/python")
    if shutil.which(python) is None:
        raise argparse.ArgumentTypeError(f"{python!r}, the interpreter of {name}, is no program")
    # A relative path would mean something else in the folder of a child.
    return name, os.path.abspath(python) if os.path.dirname(python) else python


def _ray_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as head:6379")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of a farm. What each field means stands beside it; secrets are paths of files, never values."""

    listen: str = field(
        default=_DEFAULTS.listen,
        metadata=flag(
            "address for pods; port 0 takes a free port", group=_ADDRESSES, metavar="HOST:PORT", gateway="listen"
        ),
    )
    insecure: bool = field(
        default=False,
        metadata=flag(
            "listen beyond this host although callers are not authenticated, on a network that is trusted",
            group=_ADDRESSES,
            kind="switch",
            gateway="insecure",
        ),
    )
    auth: str = field(
        default="",
        metadata=flag(
            "serve only the callers that this file lists, each within its role; it is read again when it changes; "
            "`compilefarm keys token` makes entries",
            group=_ADDRESSES,
            metavar="FILE",
            default_text="everybody may do everything",
            gateway="auth_file",
        ),
    )
    tls_certificate: str = field(
        default="",
        metadata=flag(
            "encrypt connections with this certificate, in PEM, followed by those that certify it; this file and the "
            "next two are read again when they change",
            group=_ADDRESSES,
            metavar="FILE",
            gateway="tls_certificate",
        ),
    )
    tls_key: str = field(
        default="",
        metadata=flag("private key of the certificate, in PEM", group=_ADDRESSES, metavar="FILE", gateway="tls_key"),
    )
    tls_client_ca: str = field(
        default="",
        metadata=flag(
            "require certificates of this authority from callers; a name in the certificate identifies the caller in "
            "the file of --auth",
            group=_ADDRESSES,
            metavar="FILE",
            gateway="tls_client_ca",
        ),
    )
    signing_key: str | None = field(
        default=None,
        metadata=flag(
            "sign artifacts with this private key (`compilefarm keys new`), and serve only artifacts that it signed",
            group=_ADDRESSES,
            metavar="FILE",
        ),
    )
    signer: str | None = field(
        default=None,
        metadata=flag(
            "have another process sign artifacts, which keeps the private key (`compilefarm signer`)",
            group=_ADDRESSES,
            metavar="unix:PATH",
        ),
    )
    trusted_keys: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "serve artifacts that this public key signed, too, such as the previous key; may be given several times",
            group=_ADDRESSES,
            name="trusted-key",
            kind="list",
            metavar="ed25519:...",
        ),
    )
    store: str = field(
        default_factory=_default_store,
        metadata=flag(
            "where artifacts are kept: a directory, or s3://BUCKET/PREFIX?endpoint=URL",
            group=_STORE,
            metavar="STORE",
            default_text="~/.local/share/compilefarm/store",
        ),
    )
    read_only: bool = field(
        default=False,
        metadata=flag(
            "serve what is stored; write nothing to the store, and compile nothing",
            group=_STORE,
            kind="switch",
            gateway="read_only",
        ),
    )
    store_size_limit: int | None = field(
        default=None,
        metadata=flag(
            "evict the least recently used artifacts when the store is larger, for example 50GB; "
            "an object counts 4 KiB at least",
            group=_STORE,
            metavar="SIZE",
            read=size,
            default_text="keep all",
        ),
    )
    cache_size_limit: int | None = field(
        default=None,
        metadata=flag(
            "keep entries of torch's own caches, and packages of Dynamo, for pods, beside the store, and evict the "
            "least recently used when they are larger, for example 20GB; pods load what other pods wrote there",
            group=_STORE,
            metavar="SIZE",
            read=size,
            default_text="none are kept",
        ),
    )
    cache_lifetime: int = field(
        default=30,
        metadata=flag(
            "remove entries of torch's own caches that nobody has used for so many days",
            group=_STORE,
            kind="number",
            metavar="DAYS",
            read=positive,
        ),
    )
    cache_memory: int = field(
        default=size("256MB"),
        metadata=flag(
            "memory for what was recently read from the store; 0B keeps nothing there",
            group=_STORE,
            metavar="SIZE",
            read=size,
            default_text="256MB",
        ),
    )
    state: Path | None = field(
        default=None,
        metadata=flag(
            "directory of this gateway: the name by which workers on Ray find it again; earlier releases kept accepted "
            "prewarm jobs there, which are done",
            group=_STORE,
            metavar="DIR",
            read=Path,
            default_text="one for each farm below ~/.local/state/compilefarm",
        ),
    )
    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto",
        metadata=flag(
            "compile for GPUs or for the CPU; auto: for GPUs if there are any",
            group=_COMPILES,
            choices=("auto", "cpu", "cuda"),
        ),
    )
    slots: int = field(
        default=1,
        metadata=flag(
            "compiles at a time, in each environment, and per GPU on CUDA, where they measure one after the other; "
            "on Ray, of a node",
            group=_COMPILES,
            kind="number",
            metavar="N",
            read=positive,
        ),
    )
    workers: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=flag(
            "add workers of another interpreter (another torch, the same Compilefarm); may be given several times",
            group=_COMPILES,
            name="worker",
            kind="list",
            metavar="ENVIRONMENT=PYTHON",
            read=_worker,
        ),
    )
    environments: tuple[DeclaredEnvironment, ...] = field(
        default=(),
        metadata=flag(
            "environments that need no worker to have jobs wait for them, as tables of the file: "
            '`[environments.NAME]` with `device` ("cpu" or "cuda") and `python` or `image`; and, for pools that start '
            "workers when they are needed, `resources`, `least-workers`, `most-workers`, `idle-seconds`",
            group=_COMPILES,
            kind="tables",
            metavar="TABLES",
            read=environments,
        ),
    )
    pool: Literal["local", "ray"] = field(
        default="local",
        metadata=flag(
            "where workers run: processes of this host, or actors of a Ray cluster (extra `ray`)",
            group=_COMPILES,
            choices=("local", "ray"),
        ),
    )
    ray_address: str | None = field(
        default=None,
        metadata=flag(
            "head of the Ray cluster, of which this host has to be a node; the cluster belongs to the farm alone",
            group=_COMPILES,
            metavar="HOST:PORT",
            read=_ray_address,
            default_text="Ray is started on this host, and ends with the farm",
        ),
    )
    ray_workers: int | None = field(
        default=None,
        metadata=flag(
            "workers of each environment on Ray; those for which there is no place yet wait for a node",
            group=_COMPILES,
            kind="number",
            metavar="N",
            read=positive,
            default_text="as many as there are GPUs, or on CPUs nodes, times --slots, when the farm starts",
        ),
    )
    worker_lifetime: int = field(
        default=60,
        metadata=flag(
            "how long workers on the Ray cluster of --ray-address, and what they compile, go on without their gateway: "
            "one that starts again within that, with the same --state, has them again",
            group=_COMPILES,
            kind="number",
            metavar="SECONDS",
            read=positive,
        ),
    )
    compile_timeout: int = field(
        default=3600,
        metadata=flag(
            "end a compile that takes longer", group=_COMPILES, kind="number", metavar="SECONDS", read=positive
        ),
    )
    verify: Literal["before", "after", "off"] = field(
        default=_DEFAULTS.verify,
        metadata=flag(
            "check each artifact in a clean process before it is served, or after (and withdraw it if it fails), or "
            "never",
            group=_COMPILES,
            choices=("before", "after", "off"),
            gateway="verify",
        ),
    )
    modules: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Python module that registers operators which graphs may call; may be given several times",
            group=_COMPILES,
            name="import",
            kind="list",
            metavar="MODULE",
        ),
    )
    libraries: tuple[str, ...] = field(
        default=KNOWN_LIBRARIES,
        metadata=flag(
            "installed libraries whose operators graphs may call, with commas between their names; a worker imports "
            "one for the graph of a pod that has the same version of it; none: no library",
            group=_COMPILES,
            metavar="NAMES",
            read=names_in,
            default_text=", ".join(KNOWN_LIBRARIES),
        ),
    )
    allow_triton_kernels: bool = field(
        default=False,
        metadata=flag(
            "accept graphs with Triton kernels of users, whose source code workers then run",
            group=_COMPILES,
            kind="switch",
        ),
    )
    queue_limit: int = field(
        default=_DEFAULTS.max_queued_jobs,
        metadata=flag(
            "refuse a compile when so many of the same or a higher priority wait",
            group=_SHARES,
            kind="number",
            metavar="JOBS",
            read=positive,
            gateway="max_queued_jobs",
        ),
    )
    tenant_limit: int = field(
        default=_DEFAULTS.max_queued_jobs_of_tenant,
        metadata=flag(
            "the same for the jobs of one tenant, so that none fills the queue",
            group=_SHARES,
            kind="number",
            metavar="JOBS",
            read=positive,
            gateway="max_queued_jobs_of_tenant",
        ),
    )
    tenant_slots: int | None = field(
        default=_DEFAULTS.max_running_jobs_of_tenant,
        metadata=flag(
            "compiles of one tenant at a time",
            group=_SHARES,
            kind="number",
            metavar="JOBS",
            read=positive,
            default_text="all workers but one where --auth lists several tenants, else all",
            gateway="max_running_jobs_of_tenant",
        ),
    )
    tenant_upload_limit: int | None = field(
        default=None,
        metadata=flag(
            "what one tenant may upload within an hour, for example 5GB",
            group=_SHARES,
            metavar="SIZE",
            read=size,
            default_text="no limit",
            gateway="max_tenant_upload_bytes",
        ),
    )
    orphan_grace: int = field(
        default=int(_DEFAULTS.orphan_seconds),
        metadata=flag(
            "end a compile, unless it is a prewarm, when nobody has waited for it that long",
            group=_SHARES,
            kind="number",
            metavar="SECONDS",
            read=not_negative,
            gateway="orphan_seconds",
        ),
    )
    sandbox: Mode = field(
        default="auto",
        metadata=flag(
            "keep compiles from the network and from files with bubblewrap; auto: where it works, and it has to work "
            "with --auth or an address beyond this host; require: it has to work; off: never",
            group=_SANDBOX,
            choices=get_args(Mode),
        ),
    )
    allow_root: bool = field(
        default=False,
        metadata=flag(
            "run as root, and compiles as well: a sandbox that fails would leave them all rights of root",
            group=_SANDBOX,
            kind="switch",
        ),
    )
    memory_limit: int | None = field(
        default=None,
        metadata=flag(
            "host memory that a compile may take in addition to what its process has before it, in all its processes "
            "together, checked every second",
            group=_SANDBOX,
            kind="number",
            metavar="GB",
            read=positive,
            default_text="for each slot an equal share of three quarters of the machine's memory",
        ),
    )
    disk_limit: int = field(
        default=size("20GB"),
        metadata=flag(
            "disk that the temporary files of a compile may take, checked every second",
            group=_SANDBOX,
            metavar="SIZE",
            read=size,
            default_text="20GB",
        ),
    )
    control_group: Path | None = field(
        default=None,
        metadata=flag(
            "control group (version 2, delegated to this user) in which each compile gets one of its own, so that the "
            "kernel bounds its memory and processes",
            group=_SANDBOX,
            metavar="DIR",
            read=Path,
            default_text="none; memory is checked every second",
        ),
    )
    metrics_listen: str = field(
        default=_DEFAULTS.metrics_listen,
        metadata=flag(
            "serve metrics for Prometheus at this address, at /metrics",
            group=_OPERATION,
            metavar="HOST:PORT",
            default_text="not served",
            gateway="metrics_listen",
        ),
    )
    record: str = field(
        default="",
        metadata=flag(
            "directory in which every request is recorded, for `compilefarm prewarm`",
            group=_OPERATION,
            metavar="DIR",
            default_text="nothing is recorded",
            gateway="record",
        ),
    )
    log_format: str = field(
        default="text", metadata=flag("format of log lines", group=_OPERATION, choices=tuple(FORMATTERS))
    )
    grace: int = field(
        default=10,
        metadata=flag(
            "time that running compiles get to finish after SIGTERM",
            group=_OPERATION,
            kind="number",
            metavar="SECONDS",
            read=not_negative,
        ),
    )

    def gateway(self) -> GatewayConfig:
        """The settings of the gateway among these."""
        settings = {each.gateway: getattr(self, each.field) for each in flags_of(ServeConfig) if each.gateway}
        return GatewayConfig(**settings)

    def interpreters(self) -> dict[str, str]:
        """The Python interpreter of each environment of workers, by name.

        Raises:
            CannotStart: two environments have one name.
        """
        pythons = {DEFAULT_ENVIRONMENT: sys.executable}
        declared = [(each.name, each.python) for each in self.environments if each.python]
        for name, python in (*self.workers, *declared):
            if name in pythons:
                raise CannotStart(f"there are two environments {name}: give each --worker a name of its own")
            pythons[name] = python
        return pythons

    def state_folder(self) -> Path:
        """The directory for accepted jobs: another one for each farm of this user, unless one is named."""
        if self.state is not None:
            return self.state
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        farm = hashlib.sha256(f"{os.path.abspath(self.store)}\n{self.listen}".encode()).hexdigest()[:16]
        return base / "compilefarm" / farm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `compilefarm serve`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help='read settings from this TOML file, by the names of the flags (queue-limit = 100, import = ["my_ops"]); '
        "a flag on the command line replaces what the file says",
    )
    add_flags(parser, ServeConfig)


def read_config(arguments: argparse.Namespace) -> ServeConfig:
    """Returns the settings: flags come before the file of --config, and that before defaults.

    Raises:
        UnusableFile: the file cannot be used.
    """
    return config_of(arguments.config, **given_flags(ServeConfig, arguments))


def config_of(file: Path | None, **given: Any) -> ServeConfig:
    """Returns the settings of a file, or the defaults, with others in their place that were given otherwise.

    Raises:
        UnusableFile: the file cannot be used.
    """
    in_file = {} if file is None else read_file(file, ServeConfig)
    return ServeConfig(**in_file | given)
