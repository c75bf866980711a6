"""torch's own remote caches, kept by a farm: for graphs that no farm compiles, and for whoever calls Inductor itself.

torch's own switches say which caches are asked (docs/caches.md); this says where. `COMPILEFARM_TORCH_CACHES=yes` does
the same as `install`, when torch is imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

from compilefarm.client.announcements import announce_defect
from compilefarm.client.cache_keys import CacheKeys
from compilefarm.client.clock import SystemClock
from compilefarm.client.compiler_state import Unshared
from compilefarm.client.config import TORCH_CACHES, read_config
from compilefarm.client.connection import Connection
from compilefarm.client.farm_caches import FarmCaches
from compilefarm.client.settings import ConfigurationError
from compilefarm.client.tuning_entries import content_of_torch, describe_entry
from compilefarm.core.interruptions import raise_interruption
from compilefarm.torch_internals.kernel_sources import KernelSources
from compilefarm.torch_internals.remote_caches import TRITON_BACKEND, serve_from
from compilefarm.v1.cache_service_pb2 import TorchCache

_LOGGER = logging.getLogger("compilefarm.client")
_TRITON_CACHE = "compilefarm.client.triton_cache:TritonCache"
_PREFIX = "TORCH_CACHE_"
# What these keep is written so that people can tell what was tuned.
_TUNING = ("AUTOTUNE", "BUNDLED_AUTOTUNE")
_WHAT = "how torch's caches ask the farm"


def install() -> None:
    """Has torch's remote caches ask the farm that COMPILEFARM_ADDRESS names, in this process and those that it starts.
    Nothing is asked before a compile.

    Raises:
        ConfigurationError: a setting cannot be used, or no farm is named.
    """
    caches, keys = process_caches(), CacheKeys()
    # Processes that compile kernels, or that a launcher starts, read the same variables.
    os.environ[TORCH_CACHES] = "yes"
    os.environ.setdefault(TRITON_BACKEND, _TRITON_CACHE)
    serve_from(partial(_find, caches, keys), partial(_keep, caches, keys), report=_report)


def install_or_announce() -> None:
    """Like `install` if COMPILEFARM_TORCH_CACHES says so. What keeps it from that is logged: torch calls this while it
    is imported, and an error would keep the pod from starting.
    """
    try:
        if read_config(os.environ).torch_caches:
            install()
    except ConfigurationError as error:
        _LOGGER.warning("compilefarm: torch's caches do not ask the farm: %s", error)
    except Exception as error:  # noqa: BLE001 - logged with its traceback; the pod goes on without these caches
        raise_interruption(error)
        announce_defect(error, where=_WHAT)


def _report(error: Exception) -> None:
    raise_interruption(error)
    announce_defect(error, where=_WHAT)


def _find(caches: FarmCaches, keys: CacheKeys, name: str, key: str) -> bytes | None:
    with _going_on(caches):
        content = caches.find(TorchCache.Value(_PREFIX + name), keys.asked(name, key))
        return content if content is None or name not in _TUNING else content_of_torch(content, key=key)
    return None


def _keep(caches: FarmCaches, keys: CacheKeys, name: str, key: str, content: bytes) -> None:
    with _going_on(caches):
        key_in_farm = keys.written(name, key)
        if name in _TUNING:
            content = describe_entry(content, key=key, sources=_sources())
        caches.keep(TorchCache.Value(_PREFIX + name), key_in_farm, content)


@contextmanager
def _going_on(caches: FarmCaches) -> Iterator[None]:
    """Says once for each reason why an entry is not shared, and logs a defect inside: a compile goes on without its
    cache.
    """
    try:
        yield
    except Unshared as unshared:
        caches.leave_out(unshared.reason, why=str(unshared), action="shared")
    except Exception as error:  # noqa: BLE001 - logged with its traceback
        raise_interruption(error)
        announce_defect(error, where="torch's caches")


@cache
def _sources() -> KernelSources:
    return KernelSources()


@cache
def process_caches() -> FarmCaches:
    """The entries of the farm that the environment names.

    Raises:
        ConfigurationError: a setting cannot be used, or no farm is named.
    """
    config, clock = read_config(os.environ), SystemClock()
    return FarmCaches(config, connection=Connection(config, clock=clock), clock=clock)
