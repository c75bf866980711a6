"""torch's own forms of a compiled graph (CompiledArtifact in torch/_inductor/standalone_compile.py)."""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path
from typing import Any

from torch.utils._appending_byte_serializer import BytesWriter

_STANDALONE = "torch._inductor.standalone_compile"
_CACHE = "torch._inductor.codecache"
_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_FOLDERS = "torch._inductor.runtime.cache_dir_utils"


def write_binary(entry: Any, *, path: Path) -> None:
    """Writes a program (BundledAOTAutogradResult) as one file."""
    writer = BytesWriter()
    writer.write_bytes(importlib.import_module(_STANDALONE).AOTCompiledArtifact.AOT_HEADER)
    writer.write_bytes(importlib.import_module(_CACHE).torch_key())
    # With torch's tables of launched kernels, which a program that Inductor compiled as a whole does not use.
    writer.write_bytes(_pickled((entry, {}, {})))
    path.write_bytes(writer.to_bytes())


def write_unpacked(entry: Any, *, key: str, folder: Path) -> None:
    """Writes a program as a folder, in which its wrappers are files of Python that can be read and changed.

    Args:
        entry: the program.
        key: names it in the folder.
        folder: does not exist, or is empty.
    """
    cache: Any = importlib.import_module(_AUTOGRAD_CACHE).AOTAutogradCache
    with importlib.import_module(_FOLDERS).temporary_cache_dir(str(folder)):
        cache._write_to_local_cache(key, _pickled(entry))
        for part in (entry.compiled_fw, entry.compiled_bw):
            if part is not None:
                part.result.write_to_disk()


def load_exported(path: Path, *, format: str) -> Any:
    """Loads what was written, as torch does: unpickles it.

    Args:
        path: the file or folder.
        format: "binary" or "unpacked".
    """
    return importlib.import_module(_STANDALONE).CompiledArtifact.load(path=str(path), format=format)


class _Pickler(pickle._Pickler):
    """Names what torch has as torch's. torch.contiguous_format and its like say no module, and Python takes the first
    that has a `torch` in it, which may be one of whoever exports. Only the pickler in Python can be told.
    """

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if name is None or not name.startswith("torch.") or getattr(obj, "__module__", None):
            super().save_global(obj, name)  # type: ignore[misc]  # typeshed hides it
            return
        self.write(pickle.GLOBAL + f"torch\n{name.removeprefix('torch.')}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


def _pickled(program: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(program)
    return file.getvalue()
