"""The key by which packages are looked for: what was compiled and how, the model's fingerprint, and this process.

It reads like that of a job: 16 digits of the part that names the function, and a digest of all parts.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from google.protobuf.message import Message

from compilefarm.core.dynamo_settings import decides_traces
from compilefarm.core.keys import Part
from compilefarm.graph import settings
from compilefarm.graph.ambient import capture_ambient
from compilefarm.graph.encode import EnvironmentNeeds
from compilefarm.graph.options import capture_options
from compilefarm.loader.environment import describe_environment
from compilefarm.packages.class_descriptions import values_named_by
from compilefarm.packages.descriptions import Describer, Undescribable, content_of, name_of
from compilefarm.packages.fingerprints import Fingerprint
from compilefarm.packages.roots import find_roots
from compilefarm.torch_internals import settings as modules

# A new one whenever equal parts must not find what older releases stored.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupKey:
    """The key of packages.

    Attributes:
        text: the key.
        parts: what it was made of, each with its digest.
    """

    text: str
    parts: tuple[Part, ...]


def lookup_key(entry: Callable[..., Any], *, call: Mapping[str, object], roots: Iterable[object] = ()) -> LookupKey:
    """Returns the key of packages for a function or module as it is now.

    Args:
        entry: what torch.compile was given.
        call: its other arguments by name.
        roots: what the function is called with; modules among them are part of the model.

    Raises:
        Undescribable: something of it has no description that another process would find equal.
        Bypass: this process is in a state that no farm compiles for.
    """
    fingerprint = Fingerprint()
    described = {
        "entry": _describe_entry(entry, fingerprint.describer),
        "call": fingerprint.describer.describe(dict(call)),
    }
    for root in find_roots(entry, *_held_by(entry), *roots):
        fingerprint.add(root)
    digests = {name: _digest_of(text) for name, text in described.items()} | dict(fingerprint.digests())
    process = _describe_process(fingerprint.device_types or {"cpu"})
    return _key_of(digests | {name: _digest_of(text) for name, text in process.items()})


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key_of(digests: Mapping[str, str]) -> LookupKey:
    whole = hashlib.sha256(f"compilefarm package {FORMAT}\n".encode())
    for name, digest in digests.items():
        whole.update(f"{name} {digest}\n".encode())
    parts = tuple(Part(name=name, digest=digest) for name, digest in digests.items())
    return LookupKey(text=f"{digests['entry'][:16]}-{whole.hexdigest()}", parts=parts)


def _function_of(entry: Callable[..., Any]) -> FunctionType | None:
    function = entry.__func__ if isinstance(entry, MethodType) else entry
    return function if isinstance(function, FunctionType) else None


def _describe_entry(entry: Callable[..., Any], describer: Describer) -> str:
    function = _function_of(entry)
    if function is not None:
        named = [(name, describer.describe_loosely(value)) for name, value in _functions_from(function)]
        return f"{describer.describe_loosely(function)} {named}"
    if isinstance(type(entry).__call__, FunctionType):
        return f"{name_of(type(entry))} {describer.describe_loosely(type(entry).__call__)}"
    raise Undescribable(f"a {name_of(type(entry))} is compiled, which is no function of Python")


def _functions_from(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """The functions that a function names, those that it names in its own module likewise."""
    waiting, seen = [function], {id(function)}
    while waiting:
        current = waiting.pop()
        for name, value in values_named_by(current):
            if isinstance(value, FunctionType) and id(value) not in seen:
                seen.add(id(value))
                yield name, value
                if value.__globals__ is function.__globals__:
                    waiting.append(value)


def _held_by(entry: Callable[..., Any]) -> Iterator[object]:
    """What a function has without being called with it: its object, its closure, and the globals that it names."""
    function = _function_of(entry)
    if isinstance(entry, MethodType):
        yield entry.__self__
    if function is not None:
        for each in (function, *(found for _, found in _functions_from(function))):
            yield from map(content_of, each.__closure__ or ())
            if each.__globals__ is function.__globals__:
                yield from (value for _, value in values_named_by(each))


def _describe_process(device_types: Collection[str]) -> Mapping[str, str]:
    """What of this process decides what Dynamo finds out, or what the programs of its graphs are."""
    has_cuda = "cuda" in device_types
    needs = EnvironmentNeeds(cpu="cpu" in device_types, cuda_device=torch.cuda.current_device() if has_cuda else None)
    ambient = capture_ambient([each for each in device_types if each in ("cpu", "cuda")])
    ambient.cpu_threads = torch.get_num_threads()
    return {
        "dynamo": repr(_deviations()),
        "options": _text_of(capture_options({}, cuda=has_cuda)),
        "state": _text_of(ambient),
        "environment": f"{_INTERPRETER} {_text_of(describe_environment(needs))}",
    }


_INTERPRETER = (sys.implementation.cache_tag, platform.python_version(), platform.machine())


def _text_of(message: Message) -> str:
    return message.SerializeToString(deterministic=True).hex()


def _deviations() -> list[tuple[str, str]]:
    """Settings of Dynamo that are not as torch has them, and decide what is traced and guarded."""
    describer = Describer(lambda found: name_of(type(found)))
    return [
        (f"{config.__name__}.{name}", describer.describe(value))
        for config in (modules.DYNAMO, modules.SYMBOLIC_SHAPES)
        for name, value in sorted(settings.values(config).items())
        if decides_traces(name) and value != settings.defaults(config)[name]
    ]
