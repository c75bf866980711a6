"""Checks what of torch's own caches a farm keeps, and whether this machine would ask for it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.cli.words import size_words
from compilefarm.client.config import CACHE_SIGNING_KEY, TORCH_CACHES, ConfigurationError, read_config
from compilefarm.v1.admin_service_pb2 import CacheUsage, StatusResponse, Trust

_JOB = "TORCH_COMPILE_JOB_ID"
_PGO = "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO"
_TRITON = "TRITON_CACHE_MANAGER"
# torch/compiler/config.py: force_disable_caches, which Triton does not know.
_OFF = ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES")
# torch's own switches (torch/_inductor/config.py, _functorch/config.py, _dynamo/config.py).
_SWITCHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
    _PGO,
)
_TRITON_REMOTE = "triton.runtime.cache:RemoteCacheManager"
_ENTRY_POINTS = "torch.backends"


def check_caches(status: StatusResponse, *, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yields what a farm keeps, and what a pod with these variables would ask it for.

    Args:
        status: of the farm.
        environ: variables of the pod.
    """
    yield ok("farm: torch's caches", _kept_words(status.caches) if status.HasField("caches") else "it keeps none")
    if not _is_asking(environ):
        if switches := _switches(environ):
            yield _unasked(switches)
        return
    yield _check_switches(environ)
    yield _check_compile_workers()
    yield _check_farm(status)
    trust = read_config(environ).trust
    if trust.trusted_keys or trust.trusted_cache_keys:
        yield _check_signing(trust.cache_signing_key)


def _kept_words(usage: CacheUsage) -> str:
    asked = sum(requests.hits + requests.misses for requests in usage.requests)
    found = sum(requests.hits for requests in usage.requests)
    ahead = sum(requests.sent_ahead for requests in usage.requests)
    size = f"{size_words(usage.size_bytes)} of {size_words(usage.size_limit_bytes)}"
    return f"{usage.entries} entries, {size}; {found} of {asked} questions found one, {ahead} more sent ahead"


def _is_asking(environ: Mapping[str, str]) -> bool:
    try:
        return read_config(environ).torch_caches
    except ConfigurationError:
        # Another check says so.
        return False


def _switches(environ: Mapping[str, str]) -> list[str]:
    on = [name for name in _SWITCHES if environ.get(name) == "1"]
    return [*on, _TRITON] if environ.get(_TRITON) == _TRITON_REMOTE else on


def _unasked(switches: Sequence[str]) -> Check:
    return warning(
        "torch's caches",
        f"{', '.join(switches)}: torch asks Redis, and no farm",
        remedy=f"set {TORCH_CACHES}=yes, or call compilefarm.client.torch_caches.install()",
    )


def _check_switches(environ: Mapping[str, str]) -> Check:
    name, switches = "torch's caches", _switches(environ)
    if not switches:
        remedy = f"set torch's own switches, such as {_SWITCHES[0]}=1 (docs/caches.md)"
        return warning(name, f"{TORCH_CACHES} is on, and none of torch's switches", remedy=remedy)
    if _PGO in switches and not environ.get(_JOB):
        remedy = f"set {_JOB} to a name that all pods of the job have"
        return warning(name, f"{_PGO} is on without {_JOB}: torch keeps no decisions on dynamic shapes", remedy=remedy)
    off = [variable for variable in _OFF if environ.get(variable) == "1"]
    if off and switches != [_TRITON]:
        words = " ".join(off)
        return warning(name, f"{words}: torch's caches are off, and ask no farm", remedy=f"unset {words}")
    return ok(name, f"the farm is asked: {', '.join(switches)}")


def _check_compile_workers() -> Check:
    name = "torch's caches: compile workers"
    declared = [point.value for point in importlib.metadata.entry_points(group=_ENTRY_POINTS)]
    if any(value.startswith("compilefarm.") for value in declared):
        return ok(name, "they ask the farm, too")
    return warning(
        name,
        f"no installed distribution declares the entry point {_ENTRY_POINTS} of Compilefarm: processes in which torch "
        "compiles kernels do not ask for their best configurations",
        remedy="install it in place of putting it on PYTHONPATH: pip install 'compilefarm[client]'",
    )


def _check_farm(status: StatusResponse) -> Check:
    name = "torch's caches: farm"
    if not status.HasField("caches"):
        return failed(name, "this machine asks, and the farm keeps none", remedy="serve with --cache-size-limit")
    if not status.trust.asks_callers:
        return ok(name, "everybody may read and write entries")
    return _check_role(status.trust, name=name)


def _check_signing(signing_key: str) -> Check:
    name = "torch's caches: signatures"
    if signing_key:
        return ok(name, f"only signed entries are read, and those written are signed with {signing_key}")
    return warning(
        name,
        "this machine trusts keys, so it reads only signed entries, and it has no key to sign with, so it writes none",
        remedy=f"set {CACHE_SIGNING_KEY} to a key that readers trust, unless other machines write for this one",
    )


def _check_role(trust: Trust, *, name: str) -> Check:
    roles = trust.role.split(", ")
    if "cache-write" in roles:
        return ok(name, f"{trust.caller!r} may read and write entries")
    if "cache-read" in roles:
        return ok(name, f"{trust.caller!r} may read entries, and writes none")
    finding = f"{trust.caller!r} may not read entries: it has role {trust.role}"
    return failed(name, finding, remedy="have it given the role cache-read or cache-write")
