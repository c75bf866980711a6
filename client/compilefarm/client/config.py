"""The configuration of a client. Its fields are the table of settings: arguments of `Farm`, environment variables,
defaults and their documentation follow from it. The environment is read here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict, Unpack, get_args

from compilefarm.client.settings import (
    VARIABLE_PREFIX,
    Setting,
    read_number,
    read_values,
    read_yes_or_no,
    setting,
    settings_of,
    variable_of,
)
from compilefarm.client.settings import ConfigurationError as ConfigurationError
from compilefarm.client.trust import Trust
from compilefarm.core.metadata import LONGEST_TENANT

OnMiss = Literal["wait", "local", "eager", "error"]
OnFailure = Literal["local", "eager", "error"]
Priority = Literal["interactive", "background", "prewarm"]
Dynamo = Literal["off", "reuse", "publish"]

# Patterns are compiled when they are first used: a pod pays for what it imports.
# Kubernetes describes every Service of the namespace to every pod, one named "compilefarm" too
# (COMPILEFARM_SERVICE_HOST, COMPILEFARM_PORT_7077_TCP_ADDR).
_FROM_KUBERNETES = r"COMPILEFARM(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_[A-Z]+(_[A-Z]+)?)?)"
_TENANT = rf"[!-~]{{0,{LONGEST_TENANT}}}"
_HOST_AND_PORT = r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client talks to its farm. What each field means stands beside it.

    Raises:
        ConfigurationError: a value cannot be used.
    """

    address: str = field(metadata=setting('Address of the farm: "host:port", or "unix:/path" for a socket.'))
    on_miss: OnMiss = field(
        default="wait",
        metadata=setting(
            'What to do with a graph that is not stored: "wait" has the farm compile it; "local" compiles it in this '
            'process; "eager" runs it uncompiled until the farm has compiled it, whose program then takes over between '
            'two calls, also if the farm does not answer within a second; "error" raises, and nothing is ever compiled '
            "in this process.",
            choices=get_args(OnMiss),
        ),
    )
    on_failure: OnFailure = field(
        default="local",
        metadata=setting(
            'What to do with a graph for which the farm has no program, whatever the reason: "local" compiles it in '
            'this process if the machine can, and runs it uncompiled otherwise; "eager" runs it uncompiled; "error" '
            "raises the failure. A graph that is never sent to a farm (a bypass) is not a failure of the farm.",
            choices=get_args(OnFailure),
        ),
    )
    self_check: float = field(
        default=0.0,
        metadata=setting(
            "Fraction, from 0 to 1, of the programs from the farm whose first call is compared with the uncompiled "
            "graph on copies of the inputs; a program that differs is not used again, and the farm withdraws it.",
            read=read_number,
        ),
    )
    priority: Priority = field(
        default="interactive",
        metadata=setting(
            'How urgent compiles are: "interactive" (a process waits), "background" (after those), or "prewarm" '
            "(needed later: makes room for interactive compiles, and is finished even if this process ends).",
            choices=get_args(Priority),
        ),
    )
    dynamo: Dynamo = field(
        default="off",
        metadata=setting(
            'What is done with packages, which hold what Dynamo found out in another process: "off"; "reuse" installs '
            'those that a trusted key has signed and that hold for the model, and nothing is traced then; "publish" '
            "also publishes what had to be traced.",
            choices=get_args(Dynamo),
        ),
    )
    dynamo_canary: float = field(
        default=0.0,
        metadata=setting(
            "Fraction, from 0 to 1, of the processes that trace everything, also where a package holds, and compare "
            "what they find with it; the farm withdraws a package that says something else.",
            read=read_number,
        ),
    )
    tenant: str = field(
        default="",
        metadata=setting(
            "Team or service for which graphs are compiled; the farm shares its workers evenly among tenants. A farm "
            "that authenticates callers uses the tenant of the caller instead."
        ),
    )
    trust: Trust = field(default_factory=Trust)
    record: str = field(
        default="",
        metadata=setting(
            "Folder in which every request is recorded, for `compilefarm prewarm`; several processes may share it. "
            "Empty: nothing is recorded.",
            convert=str,
        ),
    )
    record_tensors: bool = field(
        default=True,
        metadata=setting(
            'Whether a recording holds the small tensors that graphs hold ("yes" or "no").',
            read=read_yes_or_no,
        ),
    )
    torch_caches: bool = field(
        default=False,
        metadata=setting(
            "Whether torch's own remote caches, as far as its switches turn them on, are kept by the farm "
            '("yes" or "no"; `compilefarm.client.torch_caches.install()` does the same).',
            read=read_yes_or_no,
            is_argument=False,
        ),
    )
    warm: bool = field(
        default=False,
        metadata=setting(
            "Whether a process imports what its first compile needs in a thread that starts at the end of "
            '`import torch`, while it loads weights ("yes" or "no"; `compilefarm.client.warm()` does the same later).',
            read=read_yes_or_no,
            is_argument=False,
        ),
    )
    cache_timeout_seconds: float = field(
        default=30.0,
        metadata=setting(
            "Seconds that reading or writing an entry of torch's own caches may take; after that torch goes on with "
            "local ones, and leaves the address alone for 30 seconds.",
            read=read_number,
            is_argument=False,
        ),
    )
    timeout_seconds: float = field(
        default=600.0,
        metadata=setting("Seconds that one graph may spend on the farm before `on_failure` applies.", read=read_number),
    )
    connect_timeout_seconds: float = field(
        default=5.0,
        metadata=setting(
            "Seconds to wait for a connection; after that the address is left alone for 30 seconds.",
            has_variable=False,
        ),
    )
    retry_connect_seconds: float = field(
        default=30.0,
        metadata=setting(
            "Seconds for which an address that did not answer is left alone.", has_variable=False, is_argument=False
        ),
    )

    def __post_init__(self) -> None:
        _require_address(self.address)
        for each in settings_of(ClientConfig):
            if each.choices and getattr(self, each.name) not in each.choices:
                raise ConfigurationError(
                    f"{each.name} is {getattr(self, each.name)!r}: use one of {', '.join(each.choices)}"
                )
        for name in ("self_check", "dynamo_canary"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: use a fraction from 0 to 1")
        if self.dynamo == "publish" and not self.trust.package_signing_key:
            raise ConfigurationError(
                'dynamo is "publish", and nothing says what packages are signed with: set '
                f"{PACKAGE_SIGNING_KEY} to a file that `compilefarm keys new` has made"
            )
        if not re.fullmatch(_TENANT, self.tenant):
            raise ConfigurationError(
                f"tenant is {self.tenant[:200]!r}: use at most {LONGEST_TENANT} ASCII characters, without spaces"
            )
        for name in ("timeout_seconds", "cache_timeout_seconds", "connect_timeout_seconds", "retry_connect_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} is {getattr(self, name)}: use a number of seconds above zero")


class TrustSettings(TypedDict, total=False):
    """The arguments that say how a client authenticates, and what it trusts: the fields of `Trust`, or None."""

    token: str | None
    token_file: str | None
    tls_ca: str | None
    tls_certificate: str | None
    tls_key: str | None
    trusted_keys: Sequence[str] | None
    trusted_package_keys: Sequence[str] | None
    package_signing_key: str | Path | None


class Settings(TrustSettings, total=False):
    """The arguments of `Farm` that are settings: the fields of `ClientConfig`, or None."""

    on_miss: OnMiss | None
    on_failure: OnFailure | None
    self_check: float | None
    priority: Priority | None
    dynamo: Dynamo | None
    dynamo_canary: float | None
    tenant: str | None
    record: str | Path | None
    record_tensors: bool | None
    timeout_seconds: float | None
    connect_timeout_seconds: float | None


SETTINGS: tuple[Setting, ...] = tuple(settings_of(ClientConfig))
ADDRESS = variable_of("address")
TENANT = variable_of("tenant")
RECORD = variable_of("record")
TORCH_CACHES = variable_of("torch_caches")
TRUSTED_KEYS = variable_of("trusted_keys")
TRUSTED_PACKAGE_KEYS = variable_of("trusted_package_keys")
PACKAGE_SIGNING_KEY = variable_of("package_signing_key")
CACHE_SIGNING_KEY = variable_of("cache_signing_key")
DYNAMO = variable_of("dynamo")
# What says how to trust the farm of this machine, and no other.
TRUST = tuple(each.variable for each in settings_of(Trust))
_VARIABLES = tuple(each.variable for each in SETTINGS if each.variable)
_ARGUMENTS = tuple(each.name for each in SETTINGS if each.is_argument)


def read_address(environ: Mapping[str, str]) -> str:
    """Returns the address that the environment names.

    Raises:
        ConfigurationError: it names none.
    """
    address = environ.get(ADDRESS, "")
    if not address:
        raise ConfigurationError(
            f"no compile farm is named: set {ADDRESS}=host:port, or use Farm('host:port').backend as the backend"
        )
    return address


def read_config(environ: Mapping[str, str], *, address: str | None = None, **given: Unpack[Settings]) -> ClientConfig:
    """Returns the configuration of a client: arguments come before the environment, and that before defaults.

    Raises:
        ConfigurationError: a variable of the environment is unknown, a value cannot be used, or there is no address.
        TypeError: an argument is unknown.
    """
    _require_known_names(environ, given)
    address = read_address(environ) if address is None else address
    values = read_values(ClientConfig, {**given, "address": address}, environ)
    trust = Trust(**{each.name: values.pop(each.name) for each in settings_of(Trust)})
    return ClientConfig(trust=trust, **values)


def read_trust(environ: Mapping[str, str], **given: Unpack[TrustSettings]) -> Trust:
    """Returns how a client authenticates and what it trusts: arguments come before the environment.

    Raises:
        ConfigurationError: settings contradict each other, or cannot be used.
    """
    return Trust(**read_values(Trust, given, environ))


def _require_known_names(environ: Mapping[str, str], given: Mapping[str, object]) -> None:
    unknown = sorted(
        name
        for name in environ
        if name.startswith(VARIABLE_PREFIX) and name not in _VARIABLES and not re.fullmatch(_FROM_KUBERNETES, name)
    )
    if unknown:
        raise ConfigurationError(f"unknown in the environment: {', '.join(unknown)}; known are {', '.join(_VARIABLES)}")
    for name in given:
        if name not in _ARGUMENTS:
            raise TypeError(f"Farm() has no argument {name!r}; known are {', '.join(_ARGUMENTS)}")


def _require_address(address: str) -> None:
    if address.startswith("unix:"):
        return
    match = re.fullmatch(_HOST_AND_PORT, address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigurationError(f"{address!r} is no address of a farm: use host:port, without http://")
