"""The key by which packages are looked for: what was compiled and how, the model's fingerprint, and this process."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType

import torch
from google.protobuf.message import Message

from compilefarm.core.dynamo_packages import Lookup
from compilefarm.core.dynamo_settings import decides_traces
from compilefarm.core.keys import Part
from compilefarm.graph import settings
from compilefarm.graph.ambient import describe_ambient
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.options import capture_options
from compilefarm.loader.environment import describe_environment
from compilefarm.packages.class_descriptions import values_named_by
from compilefarm.packages.descriptions import Describer, content_of, name_of
from compilefarm.packages.fingerprints import Fingerprint
from compilefarm.packages.key_texts import key_text
from compilefarm.packages.roots import find_roots
from compilefarm.torch_internals import settings as modules


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupKey:
    """The key of packages.

    Attributes:
        text: the key.
        parts: what it was made of, each with its digest.
    """

    text: str
    parts: tuple[Part, ...]


def lookup_key(
    lookup: Lookup, *, code: CodeType, scope: Mapping[str, object], local_variables: Mapping[str, object]
) -> LookupKey:
    """Returns the key of packages for a code object that is about to be called.

    Args:
        lookup: says which it is, and how torch.compile was called.
        code: the code object.
        scope: its globals. Modules and functions that the code names are part of the model.
        local_variables: what it is called with, and what it closes over. Modules among them are part of the model.

    Raises:
        Undescribable: something of the model has no description that another process would find equal.
        Bypass: this process is in a state that no farm compiles for.
    """
    fingerprint = Fingerprint()
    named = list(_named_from(code, scope))
    loosely = fingerprint.describer.describe_loosely
    functions = [(name, loosely(value)) for name, value in named if isinstance(value, FunctionType)]
    for root in find_roots(*local_variables.values(), *(value for _, value in named)):
        fingerprint.add(root)
    model = fingerprint.digests()
    process = _describe_process(fingerprint.device_types or {"cpu"})
    digests = {
        "function": _digest_of(repr((lookup, functions))),
        **model,
        **{name: _digest_of(text) for name, text in process.items()},
    }
    parts = tuple(Part(name=name, digest=digest) for name, digest in digests.items())
    return LookupKey(text=key_text(lookup, parts=parts), parts=parts)


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _named_from(code: CodeType, scope: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What code names among its globals, and what the functions of its own module name that it names."""
    waiting, seen = [code], {id(code)}
    while waiting:
        for name, value in values_named_by(waiting.pop(), scope):
            yield name, value
            if isinstance(value, FunctionType):
                yield from ((name, content_of(cell)) for cell in value.__closure__ or ())
                if value.__globals__ is scope and id(value.__code__) not in seen:
                    seen.add(id(value.__code__))
                    waiting.append(value.__code__)


def _describe_process(device_types: Collection[str]) -> Mapping[str, str]:
    """What of this process decides what Dynamo finds out, or what the programs of its graphs are."""
    has_cuda = "cuda" in device_types
    needs = EnvironmentNeeds(cpu="cpu" in device_types, cuda_device=torch.cuda.current_device() if has_cuda else None)
    ambient = describe_ambient([each for each in device_types if each in ("cpu", "cuda")])
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
