"""Requests in which one text, or one value, is a marker: what a compile makes of them shows where text goes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from google.protobuf.message import Message
from torch.nn.attention.flex_attention import flex_attention

from compilefarm.graph import settings, targets
from compilefarm.graph.higher_order import SIGNATURES
from compilefarm.graph.operators import find_operator, operators_of_torch
from compilefarm.graph.testing import capture
from compilefarm.v1.graph_pb2 import Call, Device, NamedValue, Value
from compilefarm.v1.job_pb2 import Job
from tests.graph.test_subgraphs import PROGRAMS

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
        kind: of what the marker is in the place, to count by.
        place: where it is, for people.
        job: the request.
    """

    kind: str
    place: str
    job: Job


def marked(random: Random) -> Iterator[Marked]:
    """Requests without end, of every kind in turn; each comes to all of its operators, arguments, options and names in
    an order of its own before it comes to one again."""
    kinds = (
        (_text_field, text_fields()),
        (_value, range(len(examples()))),
        (_operator, operators_with_text()),
        (_higher_order, _arguments_of_higher_order()),
        (_option, options()),
    )
    orders = [(make, _in_turn(places, random)) for make, places in kinds]
    while True:
        for make, places in orders:
            yield _moved(make(next(places), random), random)


def _in_turn(places: Sequence[Any], random: Random) -> Iterator[Any]:
    while True:
        yield from random.sample(places, len(places))


def _moved(request: Marked, random: Random) -> Marked:
    """The same on a GPU, now and then: kernels are sources for Triton there."""
    if random.random() < 0.6:
        return request
    for message in _messages(request.job):
        if isinstance(message, Device) and message.type == "cpu":
            message.type = "cuda"
    return replace(request, kind=f"{request.kind} on a GPU")


def blobs_of_seeds() -> dict[str, bytes]:
    """What the requests hold."""
    return dict(blobs())


def _text_field(place: tuple[int, int], random: Random) -> Marked:
    example, field = place
    job = _copy(example)
    message, name, position = _text_fields_of(job)[field]
    marker = random.choice(MARKERS)
    if position is None:
        setattr(message, name, marker)
    else:
        getattr(message, name)[position] = marker
    return Marked(kind="field", place=f"{message.DESCRIPTOR.name}.{name}", job=job)


def _value(example: int, random: Random) -> Marked:
    """A literal of any type is a text."""
    job = _copy(example)
    value = random.choice([value for value in _messages(job.graph) if isinstance(value, Value)])
    place = f"a {value.WhichOneof('kind')}"
    value.CopyFrom(Value(text=random.choice(MARKERS)))
    return Marked(kind="value", place=place, job=job)


def _operator(name: str, random: Random) -> Marked:
    """A call of an operator that takes text, with plain arguments and a marker."""
    job = Job()
    job.CopyFrom(_plain())
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
    return Marked(kind="operator", place=name, job=job)


def _higher_order(place: tuple[int, int, int], random: Random) -> Marked:
    """A call of a higher-order operator with a marker for one of its arguments, or for what is within that."""
    example, call_number, argument = place
    job = _copy(example)
    call = higher_order_calls(job)[call_number]
    given = _given(call)[argument]
    value = random.choice([each for each in _messages(given) if isinstance(each, Value)])
    value.CopyFrom(Value(text=random.choice(MARKERS)))
    return Marked(kind="higher-order argument", place=f"argument {argument} of {call.target}", job=job)


def _option(place: tuple[bool, str], random: Random) -> Marked:
    is_inductor, name = place
    job = Job()
    job.CopyFrom(_plain())
    options = job.options.inductor if is_inductor else job.options.functorch
    options.add(name=name, value=Value(text=random.choice(MARKERS)))
    return Marked(kind="option", place=f"the option {name}", job=job)


def options() -> list[tuple[bool, str]]:
    configs = ((True, torch._inductor.config), (False, torch._functorch.config))
    return [(is_inductor, name) for is_inductor, config in configs for name in sorted(settings.defaults(config))]


def text_fields() -> list[tuple[int, int]]:
    return [(number, field) for number, job in enumerate(examples()) for field in range(len(_text_fields_of(job)))]


def _arguments_of_higher_order() -> list[tuple[int, int, int]]:
    return [
        (number, position, argument)
        for number, job in enumerate(examples())
        for position, call in enumerate(higher_order_calls(job))
        for argument in range(len(_given(call)))
    ]


def higher_order_calls(job: Job) -> list[Call]:
    calls = (message for message in _messages(job.graph) if isinstance(message, Call))
    return [call for call in calls if call.kind == targets.HIGHER_ORDER_OPERATOR]


def _given(call: Call) -> list[Value]:
    return [*call.args, *(named.value for named in call.kwargs)]


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
def examples() -> Sequence[Job]:
    """Requests of programs of many kinds, with every higher-order operator among them."""
    q = torch.ones(1, 1, 16, 16)
    attention = capture(lambda q: flex_attention(q, q, q, scale=0.5, kernel_options={"BLOCK_M": 16}), q)
    checked = capture(_checking, torch.ones(4))
    subgraphs = [capture(program, given).encode().job for program, given in PROGRAMS.values()]
    known = [*(request.job for request in seeds()), attention.encode().job, checked.encode().job, *subgraphs]
    called = {call.target for job in known for call in higher_order_calls(job)}
    return [*known, *(_alone(name) for name in sorted(SIGNATURES.keys() - called))]


def _alone(name: str) -> Job:
    """A call of a higher-order operator with numbers in the place of all its arguments."""
    job = Job()
    job.CopyFrom(_plain())
    (call,) = (node.call for node in job.graph.nodes if node.HasField("call"))
    signature = SIGNATURES[name]
    call.CopyFrom(Call(kind=targets.HIGHER_ORDER_OPERATOR, target=name))
    call.args.extend(Value(integer=0) for _ in (*signature.positional, signature.rest))
    call.kwargs.extend(NamedValue(name=keyword, value=Value(integer=0)) for keyword in sorted(signature.keywords))
    return job


def _checking(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "a message")
    return torch.linalg.svd(x.expand(4, 4), driver=None)[1] + x.std()


def _copy(example: int) -> Job:
    job = Job()
    job.CopyFrom(examples()[example])
    return job


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, MutableSequence) else [value]:
                yield from _messages(part)


def _text_fields_of(job: Job) -> list[tuple[Any, str, int | None]]:
    return [
        (message, field.name, position)
        for message in _messages(job)
        for field, value in message.ListFields()
        if field.type == field.TYPE_STRING
        for position in (range(len(value)) if isinstance(value, MutableSequence) else (None,))
    ]


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
