"""Which configurations workers chose for Triton's kernels, as the sources of an artifact say: `kernels/<name>.json` for
each, beside the wrappers, in which the kernels stand.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compilefarm.v1.manifest_pb2 import SourceFile

# The kind of such a file.
CHOICE = "json"
_FOLDER = "kernels/"
_WRAPPER = "/wrapper.py"
# What Inductor's wrappers call with the name of a kernel and its source (torch/_inductor/codegen/triton.py).
_COMPILE = "triton"
# Of models with thousands of kernels they have a few megabytes; to parse one takes a hundred times its size.
_LONGEST_WRAPPER = 16 * 1024 * 1024
_MOST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """What a worker chose for a kernel.

    Attributes:
        name: Inductor's name for the kernel.
        configuration: what was chosen, by name.
        among: how many configurations there were.
        source: of the kernel, or empty.
    """

    name: str
    configuration: Mapping[str, Any]
    among: int
    source: str


def write_choice(configuration: Mapping[str, Any], *, among: int) -> str:
    """Returns the text of such a file."""
    return json.dumps({"configuration": dict(configuration), "among": among}, default=str, sort_keys=True)


def read_choices(files: Iterable[SourceFile]) -> Iterator[KernelChoice]:
    """Yields what was chosen for the kernels of an artifact, by its sources. What makes no sense is left out."""
    texts = {file.path: file.text for file in files}
    sources = {
        name: source for path, text in texts.items() if path.endswith(_WRAPPER) for name, source in _kernels(text)
    }
    ending = f".{CHOICE}"
    for path, text in sorted(texts.items()):
        if path.startswith(_FOLDER) and path.endswith(ending):
            name = path.removeprefix(_FOLDER).removesuffix(ending)
            match _parse(text):
                case {"configuration": dict(configuration), "among": int(among)} if all(
                    map(is_value, configuration.values())
                ):
                    source = sources.get(name, "")
                    yield KernelChoice(name=name, configuration=configuration, among=among, source=source)


def is_value(value: Any) -> bool:
    """Whether something can be the value of an option of a kernel: a number that JSON has, a text, or nothing."""
    match value:
        case None | str():
            return True
        case int():
            return abs(value) < _MOST
        case float():
            return math.isfinite(value)
        case _:
            return False


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _kernels(wrapper: str) -> Iterator[tuple[str, str]]:
    """Names and sources of the kernels that a wrapper has compiled."""
    if len(wrapper) > _LONGEST_WRAPPER:
        return
    try:
        module = ast.parse(wrapper)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in module.body:
        match statement:
            case ast.Assign(
                value=ast.Call(
                    func=ast.Attribute(attr=attribute),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=str(source)), *_],
                )
            ) if attribute == _COMPILE:
                yield name, source
