"""torch's Mega-Cache (torch/compiler/_cache.py): what this process has compiled, or found in its caches, artifact by
artifact, and the files that torch's local caches are.

torch's own load takes several groups of one kind for one, the last (CacheArtifactManager.deserialize makes a dict of
them), so that what was saved twice in a process would be read in part. Here all are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.compiler
from torch.compiler import _cache
from torch.utils._appending_byte_serializer import AppendingByteSerializer


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedArtifact:
    """What one of torch's caches keeps under a key.

    Attributes:
        kind: which cache, as torch says it.
        key: torch's key there.
        read: returns the content.
    """

    kind: str
    key: str
    read: Callable[[], bytes]


def recorded_artifacts() -> list[CachedArtifact]:
    """What this process has compiled or found in its caches so far, the oldest first."""
    saved = torch.compiler.save_cache_artifacts()
    return [] if saved is None else _taken_apart(saved[0])


def _taken_apart(serialized: bytes) -> list[CachedArtifact]:
    _cache.CacheArtifactManager._ensure_cache_artifacts_registered()
    groups = AppendingByteSerializer.to_list(serialized, deserialize_fn=_cache._deserialize_single_cache)
    return [
        CachedArtifact(kind=kind, key=artifact.key, read=partial(bytes, artifact.content))
        for kind, artifacts in groups
        for artifact in artifacts
    ]


def local_artifacts(folder: Path) -> Iterator[CachedArtifact]:
    """What the local caches of this machine hold, the oldest first; torch calls their folder TORCHINDUCTOR_CACHE_DIR.

    Where each lies: _inductor/codecache.py: FxGraphCache; _functorch/_aot_autograd/autograd_cache.py: AOTAutogradCache;
    _inductor/runtime/autotune_cache.py; _dynamo/pgo.py: code_state_path; _dynamo/package.py: DiskDynamoStore.
    """
    found = [
        *((path, "inductor", path.parent.name) for path in folder.glob("fxgraph/*/*/*")),
        *((path, "aot_autograd", path.parent.name) for path in folder.glob("aotautograd/*/*")),
        *((path, "autotune", path.relative_to(folder).as_posix()) for path in folder.glob("*/*.best_config")),
        *((path, "pgo", path.stem.removeprefix("code_state_")) for path in folder.glob("dynamo/code_state_*.pkl")),
        *((path, "precompile", path.parent.name) for path in folder.glob("dynamo/*/entry")),
    ]
    # torch writes under a name that begins with a dot first (_inductor/codecache.py: write_atomic).
    whole = [each for each in found if not each[0].name.startswith(".") and each[0].is_file()]
    files = ((path.stat().st_mtime_ns, path, kind, key) for path, kind, key in whole)
    for _, path, kind, key in sorted(files):
        yield CachedArtifact(kind=kind, key=key, read=path.read_bytes)


def default_folder() -> Path:
    """The folder of the local caches of this process."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def load_artifact(kind: str, key: str, content: bytes) -> None:
    """Writes an artifact into the local cache that it belongs to. Nothing of it is unpickled before torch looks for it.

    Raises:
        ValueError: this torch has no such cache, or does not take it.
        OSError: it cannot be written.
    """
    _cache.CacheArtifactManager._ensure_cache_artifacts_registered()
    try:
        artifact = _cache.CacheArtifactFactory.create(kind, key, content)
        serializer = AppendingByteSerializer(serialize_fn=_cache._serialize_single_cache)
        serializer.append((kind, [artifact]))
        loaded = torch.compiler.load_cache_artifacts(serializer.to_bytes())
    except (AssertionError, RuntimeError) as error:
        # 2.11 asserts without a word that the cache of decisions on dynamic shapes is on.
        raise ValueError(str(error) or "its cache is switched off") from error
    if loaded is None:
        raise ValueError("torch does not read it")
