"""What `python -m tests.gpu.caches` compiles is tuned: its kernels are written here for a GPU that is not there."""

from __future__ import annotations

import pytest

from tests.fuzz.imagined_kernels import write_kernels

from .caches import INPUT, make_model

pytest.importorskip("triton")


def test_each_kernel_is_tuned() -> None:
    kernels = write_kernels(make_model(), INPUT)
    assert len(kernels) == 2
    assert min(kernel.configurations for kernel in kernels) > 1
