"""What the table of programs is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Case, Function, Lacking, backpropagating, call, plainly, require_module

__all__ = [
    "Case",
    "Compiler",
    "Lacking",
    "Program",
    "backpropagating",
    "call",
    "plainly",
    "program_of_case",
    "require_module",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """How a program compiles what it runs.

    Attributes:
        backend: of torch.compile; None in the run that the others are held against, which compiles nothing.
        device: where its tensors are.
    """

    backend: Any
    device: torch.device

    def __call__(self, function: Function, **options: Any) -> Function:
        """The function as torch.compile makes it."""
        return function if self.backend is None else torch.compile(function, backend=self.backend, **options)

    def in_place(self, module: nn.Module, **options: Any) -> None:
        """Does what `module.compile()` does."""
        if self.backend is not None:
            module.compile(backend=self.backend, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the table.

    Attributes:
        name: unique within its library.
        run: makes its model and inputs on the compiler's device, and gives all that is compared: results, gradients,
            what was written to. The runner seeds torch's generator before. Raises Lacking where it cannot run.
        training: gradients are wanted; other programs run under no_grad.
        precision: of its numbers inside, where that is lower than its results let on, as under autocast.
        context: entered around every run: ambient state, settings of Dynamo.
        reference: the same in high precision, for programs in which a last bit decides: results may then be twice as
            far from it as those of the uncompiled run, whatever `precision`.
        uncaptured: why Dynamo captures nothing of it, with a farm or without; empty if it does.
    """

    name: str
    run: Callable[[Compiler], Any]
    training: bool = False
    precision: torch.dtype = torch.float64
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    reference: Callable[[Compiler], Any] | None = None
    uncaptured: str = ""


def program_of_case(
    name: str, build: Callable[[], Case], *, options: Mapping[str, Any] | None = None, **flags: Any
) -> Program:
    """A program that compiles one function and calls it.

    Args:
        name: of the program.
        build: makes function and calls.
        options: of torch.compile.
        flags: fields of the program.
    """

    def run(compiler: Compiler) -> Any:
        with compiler.device:
            case = build()
        if isinstance(case.function, nn.Module):
            # Some make weights by torch.FloatTensor, which knows no default device.
            case.function.to(compiler.device)
        compiled = compiler(case.function, **(options or {}))
        results = [case.use(compiled, given) for given in case.calls]
        # Parameters are looked at with their gradients.
        state = dict(case.function.named_parameters()) if isinstance(case.function, nn.Module) else {}
        return results, state if flags.get("training") else {}

    return Program(name=name, run=run, **flags)
