"""Kernels of operators of torch that shared objects of others have registered, in C++.

To ask the dispatcher about all operators takes 0.06 s. So it is asked once whenever the process has loaded something
that can register kernels, which few libraries can.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import torch

from compilefarm.graph.operators import is_of_torch
from compilefarm.graph.registrations import Kernel, file_of_schema, native_kernels_from_elsewhere

# Files of which something is mapped to be executed (man 5 proc_pid_maps), and which of them cannot matter: torch's own,
# and libraries of artifacts, whose folders are gone by now.
_LOADED = re.compile(r" r.xp [^/\n]*(/.*)")
_HARMLESS = re.compile(rf"{re.escape(str(Path(torch.__file__).parent))}/|.*/compilefarm-[^/]+/[^/]+ \(deleted\)$")
# Parts of the names by which libraries register kernels: torch::Library, c10::RegisterOperators, and the stable
# interface (torch/library.h, aten/src/ATen/core/op_registration/op_registration.h, torch/csrc/stable/library.h).
_REGISTRARS = (b"5torch7Library", b"RegisterOperators", b"torch_library_")
# Names of keys of devices that no request is for contain one of these.
_OTHER_DEVICES = ("HPU", "IPU", "Lazy", "MAIA", "MPS", "MTIA", "PrivateUse", "Vulkan", "XLA", "XPU")
# Where sources of torch lie in its tree, and what its build makes of them.
_SOURCES = r"(?:(?:build/)?|.*/)(?:aten/src/ATen|torch/csrc|c10)/"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_SYMBOLS = 11

_looked_at: set[str] = set()
_found: str | None = None


def find_foreign_kernel() -> str | None:
    """A kernel of an operator of torch that a library has registered, for a message; None if there is none.

    What a library registers later than when it is loaded is not seen, if nothing else is loaded after that.
    """
    global _found
    new = set(_LOADED.findall(Path("/proc/self/maps").read_text())) - _looked_at
    if _found is None and any(can_register(Path(file)) for file in new if not _HARMLESS.match(file)):
        _found = next(foreign_kernels(), None)
    _looked_at.update(new)
    return _found


def foreign_kernels() -> Iterator[str]:
    """All of them that there are in this process, whoever registered them."""
    # Torch's own come from one tree of sources; of a build that names files within it, from a place in the tree.
    tree = re.split(r"(build/)?aten/src/ATen/", file_of_schema("aten::add.Tensor"), maxsplit=1)[0]
    for name, kernel in native_kernels_from_elsewhere(re.escape(tree) + _SOURCES):
        if is_of_torch(name) and _decides(kernel):
            yield f"the kernel of {name} for {kernel.key} (registered in {kernel.file})"


def can_register(library: Path) -> bool:
    """Whether a shared object may register kernels, by the names that it asks others for."""
    try:
        names = _names_of_symbols(library)
    except (OSError, struct.error):
        # It was removed, or is none.
        return True
    return any(registrar in names for registrar in _REGISTRARS)


def _decides(kernel: Kernel) -> bool:
    return not any(device in kernel.key for device in _OTHER_DEVICES)


def _names_of_symbols(library: Path) -> bytes:
    """Names of all dynamic symbols of an ELF file of 64 bits, as they lie there (elf.h: Elf64_Ehdr, Elf64_Shdr)."""
    with library.open("rb") as file:
        header = file.read(64)
        offset, entry_bytes, count = *struct.unpack_from("<Q", header, 40), *struct.unpack_from("<HH", header, 58)
        file.seek(offset)
        table = file.read(entry_bytes * count)
        sections = [_SECTION.unpack_from(table, entry_bytes * number) for number in range(count)]
        names = b""
        for section in sections:
            if section[1] == _DYNAMIC_SYMBOLS:
                strings = sections[section[6]]
                file.seek(strings[4])
                names += file.read(strings[5])
    return names
