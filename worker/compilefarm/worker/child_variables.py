"""Environment variables of children."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from compilefarm.core.variables import MATCHED_NAMES

# What a compiler may know of this process: where programs and libraries are, no credentials.
_PASSED_ON = (
    "CC", "CPATH", "CUDA_HOME", "CUDA_PATH", "CXX", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "PATH", "PYTHONPATH", "SYSTEMROOT", "TZ", "VIRTUAL_ENV",
    # What pods that have it want of their workers.
    *MATCHED_NAMES,
)  # fmt: skip


def child_variables(folder: Path, *, additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment variables of a child. Caches lie in its own folder and are removed with it.

    Args:
        folder: the folder of the child, by its path inside the sandbox if there is one.
        additions: variables beside the few that are passed on.
    """
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    private = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        # Who asks for the name of the user gets one; a sandbox has no list of users.
        "USER": "compilefarm",
        "PYTHONUNBUFFERED": "1",
        # So that equal jobs give equal bytes.
        "PYTHONHASHSEED": "0",
        # Machine code of a kernel names the file that its source lay in, in a folder of this child, otherwise.
        "TRITON_DISABLE_LINE_INFO": "1",
    }
    return {**passed_on, **private, **(additions or {})}
