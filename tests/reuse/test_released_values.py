"""What a start without a trace has looked at goes when the program lets go of it, and not when somebody next looks for
garbage: inputs of the first call may be most of what a GPU has."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.reuse.processes import pod


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@pytest.fixture(autouse=True)
def nobody_looks_for_garbage() -> Iterator[None]:
    gc.disable()
    try:
        # Dynamo looks among what is young, which what a start has made is not, unless all else is frozen.
        with torch._dynamo.config.patch(run_gc_after_compile=False):
            yield
    finally:
        gc.enable()


def test_inputs_of_the_first_call_are_let_go(tmp_path: Path) -> None:
    with pod(tmp_path) as publisher:
        torch.compile(_doubled, backend=publisher.backend)(torch.ones(3))
    torch.compiler.reset()
    x = torch.ones(3)
    known = weakref.ref(x)
    with pod(tmp_path, publishes=False) as own:
        torch.compile(_doubled, backend=own.backend)(x)
    assert [each.was_reused for each in own.outcomes] == [True]
    del x
    assert known() is None
