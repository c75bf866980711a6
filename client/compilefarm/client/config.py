"""What a client can be told. The environment is read here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from compilefarm.client.trust import ConfigurationError as ConfigurationError
from compilefarm.client.trust import Trust, read_trusted_keys
from compilefarm.core.metadata import LONGEST_TENANT

OnMiss = Literal["wait", "local", "eager", "error"]
OnFailure = Literal["local", "eager", "error"]
Priority = Literal["interactive", "background", "prewarm"]

ADDRESS = "COMPILEFARM_ADDRESS"
ON_MISS = "COMPILEFARM_ON_MISS"
ON_FAILURE = "COMPILEFARM_ON_FAILURE"
SELF_CHECK = "COMPILEFARM_SELF_CHECK"
TIMEOUT_SECONDS = "COMPILEFARM_TIMEOUT_SECONDS"
PRIORITY = "COMPILEFARM_PRIORITY"
TENANT = "COMPILEFARM_TENANT"
TOKEN = "COMPILEFARM_TOKEN"  # noqa: S105 - a name
TOKEN_FILE = "COMPILEFARM_TOKEN_FILE"  # noqa: S105 - likewise
TLS_CA = "COMPILEFARM_TLS_CA"
TLS_CERTIFICATE = "COMPILEFARM_TLS_CERTIFICATE"
TLS_KEY = "COMPILEFARM_TLS_KEY"
TRUSTED_KEYS = "COMPILEFARM_TRUSTED_KEYS"
RECORD = "COMPILEFARM_RECORD"
RECORD_TENSORS = "COMPILEFARM_RECORD_TENSORS"
DEFAULT_ON_MISS: OnMiss = "wait"
DEFAULT_ON_FAILURE: OnFailure = "local"
DEFAULT_SELF_CHECK = 0.0
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_PRIORITY: Priority = "interactive"
DEFAULT_TENANT = ""
DEFAULT_CONNECT_TIMEOUT_SECONDS = 5.0

# What says how to trust the farm of this machine, and no other.
TRUST = (TOKEN, TOKEN_FILE, TLS_CA, TLS_CERTIFICATE, TLS_KEY, TRUSTED_KEYS)
_NAMES = (ADDRESS, ON_MISS, ON_FAILURE, SELF_CHECK, TIMEOUT_SECONDS, PRIORITY, TENANT, *TRUST, RECORD, RECORD_TENSORS)
# Kubernetes describes every Service of the namespace to every pod, one named "compilefarm" too
# (COMPILEFARM_SERVICE_HOST, COMPILEFARM_PORT_7077_TCP_ADDR).
_FROM_KUBERNETES = re.compile(
    r"COMPILEFARM(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_[A-Z]+(_[A-Z]+)?)?)"
)
_TENANT = re.compile(rf"[!-~]{{0,{LONGEST_TENANT}}}")
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client talks to its farm.

    Attributes:
        address: "host:port", or "unix:/path" for a socket.
        on_miss: what to do about a graph that is not stored. "wait" has the farm compile it, "local" compiles it here,
            "eager" runs it uncompiled until the farm has compiled it, "error" raises: nothing is ever compiled here.
        on_failure: what to do about a graph for which there is no program of the farm, whatever the reason. "local"
            compiles it here where that is possible, else runs it uncompiled; "eager" runs it uncompiled; "error" raises
            what the farm failed with.
        self_check: fraction of the programs of the farm whose first call is compared with the uncompiled graph.
        priority: how urgent compiles are to the farm. "interactive": somebody waits; "background": they come after
            those; "prewarm": they may be wanted later, make room for interactive ones, and are done although this
            client goes away.
        tenant: for whom graphs are compiled, such as a team; the farm shares its workers evenly among tenants. A farm
            that asks who calls knows better.
        trust: how the client shows who it is, and whom it believes.
        record: folder in which every request is recorded; empty: nowhere.
        record_tensors: whether a recording holds the tensors that graphs hold.
        timeout_seconds: what one graph may spend on the farm before it is compiled here.
        connect_timeout_seconds: what finding out that nobody answers may take.
        retry_connect_seconds: how long an address at which nobody answered is left alone.
    """

    address: str
    on_miss: OnMiss = DEFAULT_ON_MISS
    on_failure: OnFailure = DEFAULT_ON_FAILURE
    self_check: float = DEFAULT_SELF_CHECK
    priority: Priority = DEFAULT_PRIORITY
    tenant: str = DEFAULT_TENANT
    trust: Trust = field(default_factory=Trust)
    record: str = ""
    record_tensors: bool = True
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS
    retry_connect_seconds: float = 30.0

    def __post_init__(self) -> None:
        _check_address(self.address)
        for name, words in (("on_miss", OnMiss), ("on_failure", OnFailure), ("priority", Priority)):
            known = get_args(words)
            if getattr(self, name) not in known:
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(known)}")
        if not 0 <= self.self_check <= 1:
            raise ConfigurationError(f"self_check is {self.self_check}: use a fraction from 0 to 1")
        if not _TENANT.fullmatch(self.tenant):
            raise ConfigurationError(
                f"tenant is {self.tenant[:200]!r}: use at most {LONGEST_TENANT} ASCII characters, without spaces"
            )
        for name in ("timeout_seconds", "connect_timeout_seconds", "retry_connect_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} is {getattr(self, name)}: use a number of seconds above zero")


def read_address(environ: Mapping[str, str]) -> str:
    """The address that the environment names.

    Raises:
        ConfigurationError: it names none.
    """
    address = environ.get(ADDRESS, "")
    if not address:
        raise ConfigurationError(
            f"no compile farm is named: set {ADDRESS}=host:port, or use Farm('host:port').backend as the backend"
        )
    return address


def read_config(
    environ: Mapping[str, str],
    *,
    address: str | None = None,
    on_miss: OnMiss | None = None,
    on_failure: OnFailure | None = None,
    self_check: float | None = None,
    priority: Priority | None = None,
    tenant: str | None = None,
    trust: Trust | None = None,
    record: str | None = None,
    record_tensors: bool | None = None,
    timeout_seconds: float | None = None,
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
) -> ClientConfig:
    """The configuration of a client: what is given, and what the environment says of that which is None.

    Raises:
        ConfigurationError: a name is unknown, a value cannot be used, or the address is missing.
    """
    unknown = sorted(
        name
        for name in environ
        if name.startswith("COMPILEFARM_") and name not in _NAMES and not _FROM_KUBERNETES.fullmatch(name)
    )
    if unknown:
        raise ConfigurationError(f"unknown in the environment: {', '.join(unknown)}; known are {', '.join(_NAMES)}")
    return ClientConfig(
        address=read_address(environ) if address is None else address,
        # Whether it is one of those that are known is checked when the configuration is made, and so are the next two.
        on_miss=environ.get(ON_MISS, DEFAULT_ON_MISS) if on_miss is None else on_miss,  # type: ignore[arg-type]
        on_failure=environ.get(ON_FAILURE, DEFAULT_ON_FAILURE) if on_failure is None else on_failure,  # type: ignore[arg-type]
        self_check=_number(environ, SELF_CHECK, otherwise=DEFAULT_SELF_CHECK) if self_check is None else self_check,
        priority=environ.get(PRIORITY, DEFAULT_PRIORITY) if priority is None else priority,  # type: ignore[arg-type]
        tenant=environ.get(TENANT, DEFAULT_TENANT) if tenant is None else tenant,
        trust=read_trust(environ) if trust is None else trust,
        record=environ.get(RECORD, "") if record is None else record,
        record_tensors=_yes_or_no(environ, RECORD_TENSORS, otherwise=True)
        if record_tensors is None
        else record_tensors,
        timeout_seconds=_number(environ, TIMEOUT_SECONDS, otherwise=DEFAULT_TIMEOUT_SECONDS)
        if timeout_seconds is None
        else timeout_seconds,
        connect_timeout_seconds=connect_timeout_seconds,
    )


def read_trust(
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    token_file: str | None = None,
    tls_ca: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    trusted_keys: Sequence[str] | None = None,
) -> Trust:
    """How a client shows who it is, and whom it believes: what is given, and the environment for what is None.

    Raises:
        ConfigurationError: it contradicts itself, or cannot be used.
    """
    if token is None and token_file is None:
        token, token_file = environ.get(TOKEN), environ.get(TOKEN_FILE)
    if tls_certificate is None and tls_key is None:
        tls_certificate, tls_key = environ.get(TLS_CERTIFICATE), environ.get(TLS_KEY)
    if trusted_keys is None:
        trusted_keys = environ.get(TRUSTED_KEYS, "").replace(",", " ").split()
    return Trust(
        token=token or "",
        token_file=token_file or "",
        tls_ca=environ.get(TLS_CA, "") if tls_ca is None else tls_ca,
        tls_certificate=tls_certificate or "",
        tls_key=tls_key or "",
        trusted_keys=read_trusted_keys(trusted_keys),
    )


def _yes_or_no(environ: Mapping[str, str], name: str, *, otherwise: bool) -> bool:
    text = environ.get(name)
    if text not in (None, "yes", "no"):
        raise ConfigurationError(f"{name} is {text!r}: use yes or no")
    return otherwise if text is None else text == "yes"


def _number(environ: Mapping[str, str], name: str, *, otherwise: float) -> float:
    text = environ.get(name)
    if text is None:
        return otherwise
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r}: use a number") from None


def _check_address(address: str) -> None:
    if address.startswith("unix:"):
        return
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigurationError(f"{address!r} is no address of a farm: use host:port, without http://")
