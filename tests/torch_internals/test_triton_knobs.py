"""Canaries of torch_internals/triton_knobs.py."""

from __future__ import annotations

import pytest

from compilefarm.torch_internals.triton_knobs import all_knobs


def test_knobs_stand_at_their_defaults_and_are_seen_when_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    knobs = {name: (group, default) for name, group, default in all_knobs()}
    group, default = knobs["compilation.disable_line_info"]
    assert group is triton.knobs.compilation
    assert getattr(group, "disable_line_info") == default  # noqa: B009 - as it is read elsewhere
    assert len(knobs) > 30
