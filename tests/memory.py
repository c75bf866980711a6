"""The memory of other processes, as Linux tells it."""

from __future__ import annotations

import re
from pathlib import Path


def most_resident_bytes(pid: int) -> int:
    """The most memory that a process ever had at a time, files that it had mapped included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
