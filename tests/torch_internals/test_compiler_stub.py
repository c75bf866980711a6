"""Canaries of torch_internals/compiler_stub.py; tests/loader/test_recording.py compares it with the compiler."""

from __future__ import annotations

import sys

from compilefarm.torch_internals.compiler_stub import (
    COMPILER,
    TREES,
    cudagraphify,
    get_input_idxs_to_check,
    static_input,
    without_compiler,
)


def test_the_compiler_is_stood_in_for_where_it_is_not_imported() -> None:
    compiler = sys.modules.pop(COMPILER, None)
    try:
        with without_compiler():
            stub = sys.modules[COMPILER]
            assert stub.cudagraphify is cudagraphify
            assert stub.get_input_idxs_to_check is get_input_idxs_to_check
            assert stub.static_input is static_input
        assert COMPILER not in sys.modules
    finally:
        if compiler is not None:
            sys.modules[COMPILER] = compiler
    assert TREES.startswith("torch._inductor.")
