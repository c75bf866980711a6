"""What can be done with a graph without a farm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compilefarm.client.findings import Finding

Program = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What can be done with one graph here.

    Attributes:
        find_obstacle: says why this machine cannot compile it; empty if it can.
        find_late_obstacle: says why a compile of it has to begin while Dynamo traces it; empty if it has not.
        compile: makes a program of it.
        eager: makes it callable as it is. What a compile does to the graph later does not change that.
        compare: holds the first call of a program with these inputs to the uncompiled graph; raises where that cannot
            be done.
        retry: runs the uncompiled graph on inputs for which a compiled one failed; raises InputsChange if these may
            have been written to.
    """

    find_obstacle: Callable[[], str]
    find_late_obstacle: Callable[[], str]
    compile: Callable[[], Program]
    eager: Callable[[], Program]
    compare: Callable[[Program, Sequence[Any]], Finding]
    retry: Callable[[Program, Sequence[Any]], Any]
