"""Installed distributions: which one a module comes from, and a digest of all its files."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from compilefarm.core.libraries import KNOWN_LIBRARIES, is_listed, normalized
from compilefarm.core.sources import installation_places

# In the metadata of a distribution (PyPA's core metadata). What is read is long, and parsing takes most of the time.
_NAME = re.compile(r"^Name: *(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE | re.IGNORECASE)
_NEEDS_TORCH = re.compile(r"^Requires-Dist: *torch(?![\w.-])", re.MULTILINE | re.IGNORECASE)
_OURS = "compilefarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution as an installer unpacked it.

    Attributes:
        name: its name.
        version: its version.
        digest: of its files, as the installer wrote down theirs.
    """

    name: str
    version: str
    digest: str


def distribution_of(modules: Collection[str]) -> Distribution | None:
    """The distribution that modules belong to; None if they belong to none, or to several, or to a checkout, whose
    version and list of files say little."""
    found = {_distribution(module.partition(".")[0]) for module in modules}
    return found.pop() if len(found) == 1 else None


@functools.cache
def find_distribution(name: str) -> Distribution | None:
    """The installed distribution of that name; None if there is none, or its files are those of a checkout."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    # Of an editable one the list of files names what leads to the checkout.
    entries = sorted(f"{file} {file.hash.value}" for file in found.files or () if file.hash and _is_part(file))
    if not entries or origin.get("dir_info", {}).get("editable", False):
        return None
    digest = hashlib.sha256("\n".join(entries).encode()).hexdigest()
    return Distribution(name=found.name, version=found.version, digest=digest)


@functools.cache
def modules_of(name: str) -> Mapping[str, Path]:
    """The modules of an installed distribution that are written in Python, with their files.

    Only those that the installer wrote down, in packages that are this distribution's alone.
    """
    files = importlib.metadata.distribution(name).files or ()
    found = ((_module_of(file), file) for file in files)
    return {module: Path(str(file.locate())) for module, file in found if module and _is_own(module, name)}


@functools.cache
def libraries_of_torch() -> tuple[str, ...]:
    """The installed distributions that need torch, and others whose operators graphs call, each with its version,
    sorted. What of them decides how a graph is compiled, a process may import whenever it likes.
    """
    texts = (found.read_text("METADATA") or "" for found in importlib.metadata.distributions())
    found = {
        (name[1], version[1])
        for text in texts
        if (name := _NAME.search(text)) and _computes(name[1], text) and (version := _VERSION.search(text))
    }
    return tuple(sorted(f"{normalized(name)} {version}" for name, version in found))


def is_of_library_of_torch(path: Path) -> bool:
    """Whether a file lies in an installed distribution of which `libraries_of_torch` says the version."""
    file = path.resolve()
    place = next((place for place in installation_places() if place in file.parents), None)
    if place is None:
        return False
    found = _distribution(file.relative_to(place).parts[0].partition(".")[0])
    return found is not None and f"{normalized(found.name)} {found.version}" in libraries_of_torch()


def _computes(name: str, metadata: str) -> bool:
    return normalized(name) != _OURS and (
        _NEEDS_TORCH.search(metadata) is not None or is_listed(name, libraries=KNOWN_LIBRARIES)
    )


def _module_of(file: importlib.metadata.PackagePath) -> str:
    """The name of the module that a file is; empty if it is none that can be imported as part of a program."""
    *folders, last = file.with_suffix("").parts
    parts = folders if last == "__init__" else [*folders, last]
    is_module = file.suffix == ".py" and last != "__main__" and all(map(str.isidentifier, parts))
    return ".".join(parts) if is_module else ""


def _is_own(module: str, name: str) -> bool:
    found = distribution_of([module])
    return found is not None and normalized(found.name) == normalized(name)


@functools.cache
def _distribution(top: str) -> Distribution | None:
    """The one that a top-level package belongs to."""
    names = {top} if _is_distribution(top) else set(importlib.metadata.packages_distributions().get(top, ()))
    return find_distribution(names.pop()) if len(names) == 1 else None


def _is_part(file: importlib.metadata.PackagePath) -> bool:
    """Returns whether a file is the distribution's, rather than the installer's: its notes, and scripts that name a
    Python.
    """
    return ".." not in file.parts and not file.parts[0].endswith(".dist-info") and file.suffix != ".pyc"


def _is_distribution(name: str) -> bool:
    return any(importlib.metadata.Distribution.discover(name=name))
