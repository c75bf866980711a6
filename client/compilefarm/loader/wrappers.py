"""Moves the wrapper of a loaded program to another GPU than the one that it was compiled for."""

from __future__ import annotations

import re


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
