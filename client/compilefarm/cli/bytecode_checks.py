"""Checks whether Python has torch's modules compiled, which every pod and every worker imports."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from compilefarm.cli.checks import Check, ok, warning

_NAME = "bytecode"


def check_bytecode() -> Check:
    """Checks whether torch has bytecode on disk, or gets it with the first import.

    Without it each process compiles more than a thousand files: on a host with an H100, `import torch` took 6.0 s in
    place of 2.0, and the start of a farm 13.9 s in place of 12.1 (torch 2.11, `python tests/bench/first_start.py`).
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or spec.cached is None:
        return ok(_NAME, "there is no torch here")
    if Path(spec.cached).exists():
        return ok(_NAME, "torch is compiled")
    folder = Path(spec.cached).parent
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if os.access(place, os.W_OK) and not sys.dont_write_bytecode:
        return ok(_NAME, "torch is compiled when it is first imported")
    reason = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"{place} cannot be written"
    command = f"python -m compileall -q {Path(spec.origin).parent}"
    return warning(
        _NAME,
        f"torch is not compiled, and {reason}: every process compiles it anew, which takes seconds",
        remedy=f"install with `uv pip install --compile-bytecode`, or run `{command}`, when the image is built",
    )
