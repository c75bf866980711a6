"""Imports of torch's own modules without what they import at their top and seldom call, until it is called.

torch.compile imports Dynamo's tools for debugging, whatever the backend. These import one function from its tools for
tests, and with them come AOTAutograd's partitioner and networkx, 300 modules and 0.1 s of a processor. What loads a
program imports a class and a name from a package whose own module imports how exported programs are serialized, 15
modules and 0.03 s.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# torch/_dynamo/eval_frame.py: get_compiler_fn
DEBUGGING = "torch._dynamo.repro.after_dynamo"
# torch/_dynamo/debug_utils.py imports rand_strided from there.
TESTING = "torch._dynamo.testing"
# torch/_inductor/codecache.py imports from two of its modules, which import nothing of the others.
ARCHIVES = "torch.export.pt2_archive"


class StandIn(ModuleType):
    """Stands for a module. Whoever asks it for something that it does not have gets that of the module.

    Args:
        name: of the module.
        members: what it has.
    """

    def __init__(self, name: str, **members: Any) -> None:
        super().__init__(name)
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # The import system asks whether it is a package.
            raise AttributeError(name)
        self._leave()
        return getattr(importlib.import_module(self.__name__), name)

    def _leave(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextlib.contextmanager
def standing_in(stand_in: StandIn) -> Iterator[None]:
    """Inside, a module that is not imported so far is stood in for. Another thread that imports it meanwhile gets what
    it asks for as well."""
    if sys.modules.setdefault(stand_in.__name__, stand_in) is not stand_in:
        yield
        return
    try:
        yield
    finally:
        stand_in._leave()


def import_debugging() -> None:
    """Imports what torch.compile imports of Dynamo's tools for debugging, without those for tests."""
    with standing_in(StandIn(TESTING, rand_strided=_called_late(TESTING, "rand_strided"))):
        importlib.import_module(DEBUGGING)


def without_archives() -> contextlib.AbstractContextManager[None]:
    """Inside, modules of torch's package for archives of exported programs can be imported without the package's own,
    which imports how such programs are serialized."""
    found = importlib.util.find_spec(ARCHIVES) if ARCHIVES not in sys.modules else None
    if found is None:
        return contextlib.nullcontext()
    return standing_in(StandIn(ARCHIVES, __path__=found.submodule_search_locations))


def _called_late(module: str, name: str) -> Callable[..., Any]:
    """A function that imports the one that it calls."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **keywords)

    call.__name__ = call.__qualname__ = name
    return call
