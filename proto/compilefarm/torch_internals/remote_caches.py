"""torch's remote caches (torch/_inductor/remote_cache.py): where they keep their entries.

torch has a hook for that, `backend_override_cls` of each cache, and reads it when a compile opens the cache. Its module
takes seconds to import, so it is set as soon as torch imports that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from compilefarm.torch_internals.imported_modules import when_imported

# What Triton imports for its own remote cache (triton/knobs.py: cache_knobs).
TRITON_BACKEND = "TRITON_REMOTE_CACHE_BACKEND"
_MODULE = "torch._inductor.remote_cache"
_CACHES: Mapping[str, str] = {
    "RemoteFxGraphCache": "FX_GRAPH",
    "RemoteAOTAutogradCache": "AOT_AUTOGRAD",
    "RemoteAutotuneCache": "AUTOTUNE",
    "RemoteBundledAutotuneCache": "BUNDLED_AUTOTUNE",
    "RemoteDynamoPGOCache": "DYNAMO_PGO",
}
# Their readers let errors of JSON through into the compile (_inductor/runtime/autotune_cache.py); those of the others
# take them for a miss.
_READ_UNGUARDED = ("AUTOTUNE", "BUNDLED_AUTOTUNE")

# Both are given the name of a cache and a key.
Find = Callable[[str, str], bytes | None]
Keep = Callable[[str, str, bytes], None]


def serve_from(find: Find, keep: Keep, *, report: Callable[[Exception], None]) -> None:
    """Has torch's remote caches of this process read and write their entries with these functions, which do not raise.

    Args:
        find: returns an entry; None is a miss.
        keep: writes one.
        report: is told if this torch has no such caches; they stay as they are then.
    """

    def override(module: Any) -> None:
        try:
            _override(module, find=find, keep=keep)
        except Exception as error:  # noqa: BLE001 - told; torch's module is imported as if nothing had been asked
            report(error)

    when_imported(_MODULE, override)


def autocast_device_types() -> Sequence[str]:
    """The device types that torch knows autocast for, as its keys of compiled graphs name them from 2.15 on
    (torch/_functorch/_aot_autograd/autograd_cache.py: AOTAutogradCacheDetails).
    """
    import torch

    types: Sequence[str] = torch._C._autocast_supported_devices()
    return types


def _override(module: Any, *, find: Find, keep: Keep) -> None:
    class FarmBackend(module.RemoteCacheBackend):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__()
            self._cache = name

        def _get(self, key: str) -> bytes | None:
            content = find(self._cache, key)
            is_readable = self._cache not in _READ_UNGUARDED or _is_object(content)
            return content if is_readable else None

        def _put(self, key: str, data: bytes) -> None:
            keep(self._cache, key, data)

    for class_name, cache in _CACHES.items():
        getattr(module, class_name).backend_override_cls = partial(FarmBackend, cache)


def _is_object(content: bytes | None) -> bool:
    try:
        return content is not None and isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False
