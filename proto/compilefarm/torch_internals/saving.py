"""What torch saves of a function that was compiled ahead of time."""

from __future__ import annotations

from torch._dynamo.aot_compile_types import SerializableCallable  # torch/_dynamo/aot_compile_types.py

__all__ = ["SerializableCallable"]
