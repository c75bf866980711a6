"""Compiles that take nothing from torch's caches on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def compiling_afresh() -> Iterator[None]:
    """Inside, torch finds no graph that was compiled before, here or in an earlier run: its keys know nothing of what
    we change of the compiler, so that a change of generated code would go unseen. Kernels are known by their source.
    """
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag=secrets.token_hex(8)):
        yield
