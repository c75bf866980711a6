"""Fits the wrapper of a loaded program to the process that runs it: to its GPU, and to its groups of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence


def moved_wrapper(source: str, *, device: int) -> str:
    """A finished wrapper for another GPU than number 0, which workers compile for.

    Raises:
        WrapperNotMoved: it names number 0 in a way that is not known here, and would compute there in part.
    """
    for pattern, replacement in _DEVICE_ZERO:
        source = pattern.sub(replacement.format(device=device), source)
    for number, line in enumerate(source.split("\n"), start=1):
        if _LEFT_ON_DEVICE_ZERO.search(line):
            raise WrapperNotMoved(f"line {number} of the wrapper stays on GPU 0: {line.strip()[:200]}")
    return source


def joined_wrapper(source: str, *, process_groups: Sequence[str]) -> str:
    """A finished wrapper that communicates in groups of this process.

    Args:
        source: the wrapper; it calls groups by their numbers in the request (compilefarm.graph.collectives).
        process_groups: what this process calls each.

    Raises:
        IndexError: it names a group that the request did not.
    """
    return _GROUP.sub(lambda found: repr(str(process_groups[int(found[2])])), source)


def names_process_groups(source: str) -> bool:
    """Returns whether a wrapper communicates in groups of processes."""
    return _GROUP.search(source) is not None


# How Inductor writes texts among arguments of operators (torch/_inductor/ir.py: _CollectiveKernel).
_GROUP = re.compile(r"(['\"])compilefarm_group_([0-9]{1,2})_of_[0-9]{1,5}\1")

# How Inductor writes a device into wrappers (torch/_inductor/codegen/wrapper.py, cuda/device_op_overrides.py), and this
# package.
_DEVICE_ZERO = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b(_DeviceGuard|set_device|get_raw_stream)\(0\)", r"\1({device})"),
        (r"\bdevice\(type='cuda', index=0\)", "device(type='cuda', index={device})"),
        (r"(['\"])cuda:0\1", r"\1cuda:{device}\1"),
        (r"\bfinished_kernel\((\"[0-9a-f]+\")\)", r"finished_kernel(\1, device={device})"),
    )
)

# What might name GPU 0 once those are replaced, written more loosely.
_LEFT_ON_DEVICE_ZERO = re.compile(
    r"""
    cuda:0\b
    | \bcuda['"],\s*(index\s*=\s*)?0\b
    | \b(device|device_idx|device_index|device_id)\s*=\s*0\b
    | \b(_?DeviceGuard|set_device|get_raw_stream|_getCurrentRawStream|exchange_device)\(\s*0\s*\)
    | \btorch\.cuda\.\w+\(\s*0\s*\)
    | \bfinished_kernel\([^,]*\)
    """,
    re.VERBOSE,
)


class WrapperNotMoved(Exception):
    """A wrapper cannot be run on another GPU than number 0."""
