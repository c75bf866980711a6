"""Stands in for torch._inductor.compile_fx in a process that records CUDA graphs and compiles nothing.

torch/_inductor/cudagraph_trees.py imports eight small functions from there, and torch/_inductor/output_code.py one more
when a program is loaded; with them comes the compiler, 160 modules and 0.6 s of a processor. Six of the eight are of
other modules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._guards import CompileContext  # torch/_guards.py

COMPILER = "torch._inductor.compile_fx"
TREES = "torch._inductor.cudagraph_trees"


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Inside, what is imported from the compiler for the sake of recording does not import it.

    To be used under Dynamo's lock, so that no other thread comes for the compiler meanwhile.
    """
    if COMPILER in sys.modules:
        yield
        return
    sys.modules[COMPILER] = stub = _Stub(COMPILER)
    try:
        yield
    finally:
        if sys.modules.get(COMPILER) is stub:
            del sys.modules[COMPILER]


class _Stub(ModuleType):
    """Has what recording needs; whoever asks for anything else gets the compiler."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.cudagraphify = cudagraphify
        self.get_input_idxs_to_check = get_input_idxs_to_check
        self.static_input = static_input

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # The import system asks whether it is a package.
            raise AttributeError(name)
        for module in map(importlib.import_module, ("torch._inductor.utils", "torch._inductor.output_code")):
            if vars(module).get(name) is not None:
                return vars(module)[name]
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


def cudagraphify(
    model: Callable[[list[Any]], Any], static_input_idxs: Sequence[int] = (), **how: Any
) -> Callable[[list[Any]], Any]:
    """Has torch's trees record a part of a program from its first call on, in each thread by itself."""
    trees = importlib.import_module(TREES)
    triton = importlib.import_module("torch._inductor.config").triton
    # Settings as they are now, while the program is loaded; torch 2.11 takes none of them there.
    names = inspect.signature(trees.cudagraphify).parameters
    settings = {name: getattr(triton, name) for name in names if hasattr(triton, name)}
    record = functools.partial(
        trees.cudagraphify_impl, **how, **settings, compile_id=CompileContext.current_compile_id()
    )
    keep_random_state = importlib.import_module("torch._dynamo.utils").preserve_rng_state
    local = threading.local()

    def run(inputs: list[Any]) -> Any:
        recorded = getattr(local, "recorded", None)
        if recorded is None:
            with keep_random_state():
                recorded = local.recorded = record(model, inputs, static_input_idxs)
        return recorded(inputs)

    return run


def get_input_idxs_to_check(inputs: Sequence[Any], static_input_idxs: Sequence[int]) -> Sequence[int]:
    """Numbers of the inputs that begin where kernels may load several elements at once, and may begin elsewhere at a
    later call."""
    utils = importlib.import_module("torch._inductor.utils")
    if getattr(importlib.import_module("torch._inductor.config"), "alignment_asserts_inputs", False):
        return []
    tensors = {number: each for number, each in enumerate(inputs) if isinstance(each, torch.Tensor)}
    return [
        number
        for number, each in tensors.items()
        if utils.should_assume_input_aligned(each)
        and not (number in static_input_idxs and utils.tensor_is_aligned(each))
    ]


def static_input(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes and strides, for copies of an input."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
