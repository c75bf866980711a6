"""A program that another may take the place of."""

from __future__ import annotations

from typing import Any

from compilefarm.client.ways import Program


class Switch:
    """Calls a program.

    Attributes:
        program: what is called. Replacing it is atomic: a call that is under way ends with the program that it began
            with.
    """

    __slots__ = ("program",)

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, *inputs: Any) -> Any:
        return self.program(*inputs)
