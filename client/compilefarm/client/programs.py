"""Programs: what the graphs of a pod become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Takes what the graph takes, in order.
Program = Callable[..., Any]


class Switch:
    """A program that calls another, which can be replaced.

    Attributes:
        program: what is called. Replacing it is atomic: a call that is under way ends with the program that it began
            with.
    """

    __slots__ = ("program",)

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, *inputs: Any) -> Any:
        return self.program(*inputs)
