"""Canaries of torch_internals/compiler_extensions.py."""

from __future__ import annotations

import importlib

import pytest
import torch

from compilefarm.torch_internals.compiler_extensions import find_custom_backend_table, reserves_multiprocessors


@pytest.mark.parametrize("table", ["custom_backend_passes", "custom_backend_codegen_configs"])
def test_something_of_the_users_own_is_seen(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common = importlib.import_module("torch._inductor.codegen.common")
    assert find_custom_backend_table() is None
    monkeypatch.setitem(getattr(common, table), "cpu", object())
    assert find_custom_backend_table() == table


def test_reserved_multiprocessors_are_seen() -> None:
    assert not reserves_multiprocessors()
    torch._C._set_sm_carveout_experimental(1)
    try:
        assert reserves_multiprocessors()
    finally:
        torch._C._set_sm_carveout_experimental(None)
