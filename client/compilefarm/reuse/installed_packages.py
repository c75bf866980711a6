"""What a trace asks of the packages that are installed: whether one can be imported, and which version it has.

Dynamo calls such functions while it traces and takes what they return for constants.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from compilefarm.reuse.description_texts import MISSING


def describe_package(package: str, question: str) -> str:
    """Describes what this process has of a package.

    Args:
        package: by the name that it was asked for.
        question: the name of the function that was called; "find_spec" or "version".
    """
    return _describe_version(package) if question == "version" else _describe_place(package)


def _describe_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _describe_place(package: str) -> str:
    parent = package.rpartition(".")[0]
    if parent and parent not in sys.modules:
        # To look for it would import what it is in.
        return MISSING
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        return type(error).__name__
    return MISSING if found is None else f"{found.name} {found.origin} {found.submodule_search_locations}"
