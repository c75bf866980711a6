"""Whether the processor takes the smallest numbers for zero (torch.set_flush_denormal), in this thread."""

from __future__ import annotations

import sys


def flushes_denormal() -> bool:
    """Whether it does; torch has no way to read it. Numbers of Python are treated like those of tensors."""
    return sys.float_info.min * sys.float_info.epsilon == 0.0
