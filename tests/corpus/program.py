"""What the table of programs is made of."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from compilefarm.torch_internals.pytrees import iterate_leaves

Function = Callable[..., Any]


class Lacking(Exception):
    """A program cannot run here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def to(self, function: Function) -> Any:
        """What the function gives for it."""
        return function(*self.args, **self.kwargs)


def call(*args: Any, **kwargs: Any) -> Call:
    """A call, written as one."""
    return Call(args=args, kwargs=kwargs)


def plainly(function: Function, given: Call) -> Any:
    """A use that does nothing but call."""
    return given.to(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program that is ready to run, once: it may change its weights and its inputs.

    Attributes:
        function: what is compiled.
        calls: what it is called with, in order.
        use: what a user does with the function in each call; whatever it returns is compared.
    """

    function: Function
    calls: Sequence[Call]
    use: Callable[[Function, Call], Any] = plainly


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the table.

    Attributes:
        name: unique in the table.
        build: makes a case; draws weights and inputs from torch's generator, which the runner has seeded. Raises
            Lacking where it cannot run.
        training: gradients are wanted; other programs run under no_grad.
        random: draws random numbers in the compiled part, which are not eager's; it is compared with a local compile.
        dynamic: as in torch.compile.
        precision: of its numbers inside, where that is lower than its results let on, as under autocast.
        context: entered around every run, eager ones included: ambient state, settings of Dynamo.
        eager: torch runs its graphs without compiling them, too.
    """

    name: str
    build: Callable[[], Case]
    training: bool = False
    random: bool = False
    dynamic: bool | None = None
    precision: torch.dtype = torch.float64
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    eager: bool = True


def backpropagating(function: Function, given: Call) -> Any:
    """A use that calls, and goes backward from all that gradients reach; they are left in inputs and weights."""
    result = given.to(function)
    leaves = list(iterate_leaves(result))
    reached = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    torch.autograd.backward(reached, [torch.full_like(leaf, 0.5) for leaf in reached])
    return result


def simple(
    name: str, function: Function, arguments: Callable[[], tuple[Any, ...]], *, training: bool = False, **flags: Any
) -> Program:
    """A program of one stateless function and one call; with `training`, it goes backward, too."""
    use = backpropagating if training else plainly
    return Program(
        name=name,
        build=lambda: Case(function=function, calls=[call(*arguments())], use=use),
        training=training,
        **flags,
    )


def require_module(name: str) -> Any:
    """Imports a module that is not installed everywhere.

    Raises:
        Lacking: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Lacking(f"{name} is not installed") from error


def require_cuda() -> torch.device:
    """The first GPU.

    Raises:
        Lacking: there is none.
    """
    if not torch.cuda.is_available():
        raise Lacking("there is no CUDA device")
    return torch.device("cuda", 0)
