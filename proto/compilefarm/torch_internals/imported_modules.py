"""Calls with a module of torch as soon as it is imported, by whoever imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# With it come all modules of torch that a start by a package takes before it loads a program.
DYNAMO = "torch._dynamo"


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Calls a function with a module: now if it is imported already, otherwise when it is, once.

    Args:
        name: of the module.
        call: what it raises, the import raises.
    """
    module = sys.modules.get(name)
    if module is not None:
        call(module)
    else:
        sys.meta_path.insert(0, _Watcher(name, call))


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._call(module)

            loader.exec_module = execute_and_call
        return spec
