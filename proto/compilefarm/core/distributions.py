"""Installed distributions: which one a module comes from, and a digest of all its files."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Collection
from dataclasses import dataclass


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
def _distribution(top: str) -> Distribution | None:
    names = {top} if _is_distribution(top) else set(importlib.metadata.packages_distributions().get(top, ()))
    if len(names) != 1:
        return None
    found = importlib.metadata.distribution(names.pop())
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    # Of an editable one the list of files names what leads to the checkout.
    entries = sorted(f"{file} {file.hash.value}" for file in found.files or () if file.hash and _is_part(file))
    if not entries or origin.get("dir_info", {}).get("editable", False):
        return None
    digest = hashlib.sha256("\n".join(entries).encode()).hexdigest()
    return Distribution(name=found.name, version=found.version, digest=digest)


def _is_part(file: importlib.metadata.PackagePath) -> bool:
    """Returns whether a file is the distribution's, rather than the installer's: its notes, and scripts that name a
    Python.
    """
    return ".." not in file.parts and not file.parts[0].endswith(".dist-info") and file.suffix != ".pyc"


def _is_distribution(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
