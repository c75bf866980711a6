"""Requests in which one text, or one value, is a marker: what a compile makes of them shows where text goes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from google.protobuf.message import Message
from torch.nn.attention.flex_attention import flex_attention

from compilefarm.graph import settings, targets
from compilefarm.graph.operators import find_operator, operators_of_torch
from compilefarm.graph.testing import capture
from compilefarm.v1.graph_pb2 import Call, NamedValue, Value
from compilefarm.v1.job_pb2 import Job

from .seeds import blobs, seeds

WORD = "zqxmark"
# Of a statement that leaves a trace in this process if it is run.
_TRACE = f"__import__('builtins').__dict__.setdefault('{WORD}', 1)"
MARKERS = (
    WORD, f'"); {WORD}(); //', f"'); {WORD}(); //", f"*/ {WORD}(); /*", f"\\\n{WORD}", f'\\"); {WORD}(); //',
    f"-1.0f; {WORD}()", f"{{{WORD}}}", f"{{{{{WORD}}}}}", f"%({WORD})s", f"${{{WORD}}}", f"??/\"{WORD}", f")\"{WORD}",
    f"\n{_TRACE}\n", f"', {_TRACE}, '", f'", {_TRACE}, "', f"'''\n{_TRACE}\n'''", f'"""\n{_TRACE}\n"""',
    f"\r{_TRACE}\r",
    f"\u2028{_TRACE}", f"\0{WORD}", f"#\n{_TRACE}", f"({_TRACE})", f"{WORD}:{WORD}.{WORD}", f"{WORD},{WORD}",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A request with a marker in it.

    Attributes:
        place: where it is, for people.
        job: the request.
    """

    place: str
    job: Job


def marked(random: Random) -> Iterator[Marked]:
    """Requests without end, of every kind in turn."""
    kinds = (_with_text_field, _with_value, _with_operator, _with_option)
    while True:
        for kind in kinds:
            yield kind(random)


def blobs_of_seeds() -> dict[str, bytes]:
    """What the requests hold."""
    return dict(blobs())


def _with_text_field(random: Random) -> Marked:
    job = _copy(random)
    message, name, position = random.choice(list(_text_fields(job)))
    marker = random.choice(MARKERS)
    if position is None:
        setattr(message, name, marker)
    else:
        getattr(message, name)[position] = marker
    return Marked(place=f"{message.DESCRIPTOR.name}.{name}", job=job)


def _with_value(random: Random) -> Marked:
    """A literal of any type is a text; in the call of a higher-order operator, too."""
    job = _copy(random)
    values = [value for value in _messages(job.graph) if isinstance(value, Value)]
    value = random.choice(values)
    place = f"a {value.WhichOneof('kind')}"
    value.CopyFrom(Value(text=random.choice(MARKERS)))
    return Marked(place=place, job=job)


def _with_operator(random: Random) -> Marked:
    """A call of an operator that takes text, with plain arguments and a marker."""
    job = Job()
    job.CopyFrom(_plain())
    name = random.choice(operators_with_text())
    (call,) = (node.call for node in job.graph.nodes if node.HasField("call"))
    call.CopyFrom(Call(kind=targets.OPERATOR_OVERLOAD, target=name))
    for argument in find_operator(name, is_overload=True)._schema.arguments:
        value = _argument(str(argument.type), random)
        if value is None:
            continue
        if argument.kwarg_only:
            call.kwargs.append(NamedValue(name=argument.name, value=value))
        else:
            call.args.append(value)
    call.kwargs.sort(key=lambda given: given.name)
    return Marked(place=name, job=job)


def _with_option(random: Random) -> Marked:
    job = Job()
    job.CopyFrom(_plain())
    configs = (torch._inductor.config, job.options.inductor), (torch._functorch.config, job.options.functorch)
    config, options = random.choice(configs)
    name = random.choice(sorted(settings.defaults(config)))
    options.add(name=name, value=Value(text=random.choice(MARKERS)))
    return Marked(place=f"the option {name}", job=job)


@functools.cache
def operators_with_text() -> Sequence[str]:
    """Operators of torch that a schema of torch's says to take text."""
    found = []
    for name in sorted(operators_of_torch()):
        overload = find_operator(name, is_overload=True)
        arguments = overload._schema.arguments if hasattr(overload, "_schema") else ()
        if any("str" in str(argument.type) for argument in arguments):
            found.append(name)
    return found


@functools.cache
def _plain() -> Job:
    return capture(torch.relu, torch.ones(4, 4)).encode().job


@functools.cache
def _examples() -> Sequence[Job]:
    q = torch.ones(1, 1, 16, 16)
    attention = capture(lambda q: flex_attention(q, q, q, scale=0.5, kernel_options={"BLOCK_M": 16}), q)
    checked = capture(_checking, torch.ones(4))
    return [*(request.job for request in seeds()), attention.encode().job, checked.encode().job]


def _checking(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "a message")
    return torch.linalg.svd(x.expand(4, 4), driver=None)[1] + x.std()


def _copy(random: Random) -> Job:
    job = Job()
    job.CopyFrom(random.choice(_examples()))
    return job


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, MutableSequence) else [value]:
                yield from _messages(part)


def _text_fields(job: Job) -> Iterator[tuple[Any, str, int | None]]:
    for message in _messages(job):
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING:
                positions = range(len(value)) if isinstance(value, MutableSequence) else (None,)
                yield from ((message, field.name, position) for position in positions)


def _argument(kind: str, random: Random) -> Value | None:
    """A plain value of a type of torch's schemas (torch/include/ATen/core/jit_type.h); None to leave it out."""
    if "str" in kind:
        return Value(text=random.choice(MARKERS))
    if kind.startswith("Optional") or kind.endswith("?"):
        return _none() if random.random() < 0.9 else None
    value = Value()
    match kind:
        case "Tensor":
            value.node = 0
        case "List[Tensor]":
            value.list.items.add().node = 0
        case "bool":
            value.boolean = False
        case "float":
            value.real = 0.5
        case "int" | "number" | "Scalar":
            value.integer = 1
        case _:
            value.list.items.add().integer = 1
    return value


def _none() -> Value:
    value = Value()
    value.none.SetInParent()
    return value
