"""Canaries of torch_internals/modes.py."""

from __future__ import annotations

import pytest

from compilefarm.torch_internals.modes import options_of_mode, options_of_modes


def test_modes_stand_for_settings_of_inductor() -> None:
    modes = options_of_modes()
    assert {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"} <= modes.keys()
    assert modes["max-autotune"]["max_autotune"] is True
    assert options_of_mode("reduce-overhead") == modes["reduce-overhead"] == {"triton.cudagraphs": True}


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(RuntimeError, match="fastest"):
        options_of_mode("fastest")
