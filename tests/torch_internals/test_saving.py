"""Canaries of torch_internals/saving.py."""

from __future__ import annotations

from compilefarm.torch_internals.saving import SerializableCallable


def test_what_a_backend_has_to_return_for_a_function_to_be_saved() -> None:
    assert {"serialize_compile_artifacts", "deserialize_compile_artifacts", "__call__"} == set(
        SerializableCallable.__abstractmethods__
    )
