"""Shared objects of this process that register kernels of operators in C++: its own, not torch's and not those of an
installed library whose version is known.

What traces run of an operator may be in C++, too (a composite kernel, a gradient, what says shapes), and torch's caches
know the operator by its name.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import struct
import sys
from pathlib import Path

import torch

from compilefarm.core.distributions import is_of_library_of_torch
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.extensions import loaded_libraries, registers_kernels

# torch/_inductor/codecache.py: CppCodeCache; they call operators, and their folder may be gone by now.
_OF_INDUCTOR = re.compile(r"c[a-z2-7]{51}(\.\w+)*\.so( \(deleted\))?")


class OwnLibraries:
    """Describes them, anew when the process has loaded something since. Threads share it."""

    def __init__(self) -> None:
        self._modules = 0
        self._loaded = -1
        self._digest = ""

    def digest(self) -> str:
        """What they hold; empty if there are none. What is loaded otherwise than by an import or
        `torch.ops.load_library` counts from the next of these on.

        Raises:
            Bypass: one cannot be read any more.
        """
        if self._has_loaded_more():
            # Another thread may load something meanwhile: numbers are taken before.
            modules, loaded = len(sys.modules), len(torch.ops.loaded_libraries)
            self._digest = _digest_of_own()
            self._modules, self._loaded = modules, loaded
        return self._digest

    def _has_loaded_more(self) -> bool:
        added = len(sys.modules) - self._modules
        if added < 0 or len(torch.ops.loaded_libraries) != self._loaded:
            return True
        if not added:
            return False
        # Each graph that is compiled adds a module of Python, at the end.
        names = list(itertools.islice(reversed(sys.modules), added))
        is_native = any(str(getattr(sys.modules.get(name), "__file__", None)).endswith(".so") for name in names)
        if not is_native:
            self._modules += added
        return is_native


def _digest_of_own() -> str:
    digests = sorted(_content_digest(file) for file in loaded_libraries() if _is_own(file))
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""


@functools.cache
def _is_own(file: str) -> bool:
    path = Path(file)
    if _OF_INDUCTOR.fullmatch(path.name) or is_of_library_of_torch(path):
        return False
    try:
        return registers_kernels(path)
    except (OSError, struct.error, LookupError) as error:
        raise Bypass(
            "unknown_operator_source", f"what {file} registers with torch cannot be said: it cannot be read: {error}"
        ) from error


@functools.cache
def _content_digest(file: str) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
