"""Descriptions of modules, and of what the names in code lead to."""

from __future__ import annotations

import builtins
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import MISSING, shortened
from compilefarm.reuse.names_in_code import answering_function, is_copy_of_release, is_found_by_name, static_attribute
from compilefarm.reuse.refusals import Unsayable

# Of a module: what the import keeps there.
_OF_MODULES = frozenset(
    {"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
)


def describe_module(describer: Describes, module: types.ModuleType) -> str:
    """Describes a module by its name, or a copy of one of a release by all that it holds.

    Raises:
        Unsayable: it is neither.
    """
    if is_found_by_name(module):
        return f"module:{module.__name__}"
    if not is_copy_of_release(module):
        raise Unsayable(f"the module {module.__name__}, which cannot be imported by its name")
    # Nobody asks by name what a copy holds, so that all of it is told.
    held = sorted((name, value) for name, value in vars(module).items() if name not in _OF_MODULES)
    text = "\n".join(f"{name}={describer.member(value)}" for name, value in held)
    return f"copy:{module.__name__}:{shortened(text)}"


def describe_chain(
    describer: Describes, scope: Mapping[str, Any], chain: str, *, module: types.ModuleType | None = None
) -> str:
    """Describes what code finds that names a global and attributes of modules and classes on it.

    Args:
        describer: describes what is found on the way.
        scope: the globals.
        chain: the names, with dots between.
        module: whose globals they are, if it may have been asked for the first name.
    """
    first, *rest = chain.split(".")
    value = scope.get(first, getattr(builtins, first, MISSING))
    path = [describer.named(value), *(_answers(describer, module) if first not in scope else ())]
    for name in rest:
        if not isinstance(value, (types.ModuleType, type)):
            break
        owner, value = value, static_attribute(value, name, MISSING)
        path += [describer.named(value), *(_answers(describer, owner) if value is MISSING else ())]
    return hashlib.sha256("\n".join(path).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _answers(describer: Describes, owner: types.ModuleType | type | None) -> Iterator[str]:
    """Describes what a module has for names that it does not hold. What a class has is told with the class."""
    if isinstance(owner, types.ModuleType) and (answers := answering_function(owner)) is not None:
        yield describer.named(answers)
