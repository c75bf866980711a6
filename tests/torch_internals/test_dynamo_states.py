"""Canaries of torch_internals/dynamo_states.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from compilefarm.torch_internals.dynamo_frames import Frame, Trace, intercept_frames
from compilefarm.torch_internals.dynamo_states import (
    configuration_of_dynamo,
    default_device,
    error_on_graph_break,
    forward_mode_level,
    function_modes,
    functorch_levels,
    global_module_hooks,
    global_state_text,
    inference_mode,
    saved_tensors_hooks,
)
from tests.lean import LEAN

_PRINT = "from compilefarm.torch_internals import dynamo_states as states; print(states.configuration_of_dynamo())"


def test_settings_are_told_alike_in_processes_with_other_hash_seeds() -> None:
    command = [sys.executable, LEAN, "-c", _PRINT]
    told = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True) for seed in ("1", "2")
    ]
    assert told[0].returncode == 0, told[0].stderr
    assert told[0].stdout == told[1].stdout


def test_a_changed_setting_shows() -> None:
    before = configuration_of_dynamo()
    with torch._dynamo.config.patch(recompile_limit=77):
        assert configuration_of_dynamo() != before


@pytest.mark.parametrize(
    "entered",
    [
        torch.no_grad,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16),
    ],
)
def test_global_state_shows(entered: Callable[[], AbstractContextManager[object]]) -> None:
    before = global_state_text()
    with entered():
        assert global_state_text() != before
    assert global_state_text() == before


def test_threads_show_in_global_state() -> None:
    before, threads = global_state_text(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert global_state_text() != before
    finally:
        torch.set_num_threads(threads)


def test_what_is_under_way_shows() -> None:
    assert (inference_mode(), function_modes(), functorch_levels(), forward_mode_level()) == (False, [], [], -1)
    assert not saved_tensors_hooks()
    with torch.inference_mode():
        assert inference_mode()
    with torch.device("cpu"):
        assert function_modes()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        assert saved_tensors_hooks()
    with torch.autograd.forward_ad.dual_level():
        assert forward_mode_level() == 0
    levels = []
    torch.func.grad(lambda x: levels.extend(functorch_levels()) or x.sum())(torch.ones(2))  # type: ignore[func-returns-value]
    assert len(levels) == 1


def test_modes_that_dynamo_sets_aside_show() -> None:
    seen: list[object] = []

    def on_frame(_: Frame, trace: Trace) -> object:
        seen.extend(function_modes())
        return trace()

    torch.compiler.reset()
    restore = intercept_frames(on_frame)
    try:
        with torch.device("cpu"):
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    finally:
        restore()
    assert len(seen) == 1


def test_graph_breaks_as_errors_show() -> None:
    assert not error_on_graph_break()
    with torch._dynamo.error_on_graph_break(True):
        assert error_on_graph_break()


def test_default_device_shows() -> None:
    assert default_device() is None
    torch.set_default_device("meta")
    try:
        assert str(default_device()) == "meta"
    finally:
        torch.set_default_device(None)


def test_hooks_of_all_modules_show() -> None:
    assert global_module_hooks() == []
    register = torch.nn.modules.module
    handles = [
        register.register_module_forward_hook(print),
        register.register_module_forward_pre_hook(repr),
        register.register_module_full_backward_hook(len),
    ]
    with nullcontext():
        found = global_module_hooks()
    for handle in handles:
        handle.remove()
    assert {print, repr, len} == set(found)
