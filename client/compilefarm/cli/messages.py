"""Messages of a request as text that looks like Python.

It is written straight from the message: no torch is needed, and nothing that a request names is looked up, imported or
evaluated, so that the file of a stranger may be looked at. Whatever is text in a request is escaped and cut, and only
ASCII comes out. What this release has no words for is written field by field: nothing that decides is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from google.protobuf.message import Message

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import check_expression, say
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import (
    Call,
    Device,
    Dimension,
    Expression,
    Input,
    Launch,
    Output,
    TargetKind,
    TensorSpec,
    TritonConstant,
    Value,
)
from compilefarm.v1.job_pb2 import Autocast, Symbol

_MAX_LINE_CHARACTERS = 2000
_MAX_TEXT_CHARACTERS = 200
# More than a line can show; what is cut away is not even written.
_MAX_ITEMS = 1000
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_OPERATOR = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", re.ASCII)
_FUNCTION_ROOTS: Mapping[int, Sequence[str]] = {
    TargetKind.TARGET_KIND_TORCH_FUNCTION: ("torch",),
    TargetKind.TARGET_KIND_PYTHON_FUNCTION: ("builtins", "math", "operator"),
}
_BIG_INTEGER = re.compile(r"-?[1-9][0-9]{18,1000}")


def words(value: object) -> str:
    """Returns a message, or a value within one, as an expression of bounded length."""
    return cut(MessageWriter().say(value))


def plain(text: str) -> str:
    """Returns a text without quotes, unless it needs them."""
    return cut(text) if text.isascii() and text.isprintable() and text else _quoted(text)


def cut(line: str) -> str:
    """Returns a line, cut to a bounded length."""
    if len(line) <= _MAX_LINE_CHARACTERS:
        return line
    return f"{line[:_MAX_LINE_CHARACTERS]}... ({len(line)} characters in all)"


def name_of_target(call: Call) -> str:
    """Returns the name of what a node calls, as Python would write it."""
    operator = _OPERATOR.fullmatch(call.target)
    if call.target.partition(".")[0] in _FUNCTION_ROOTS.get(call.kind, ()) and _is_name(call.target):
        return call.target
    if call.kind == TargetKind.TARGET_KIND_TENSOR_METHOD:
        return f"Tensor.{_bare(call.target)}"
    if call.kind == TargetKind.TARGET_KIND_OPERATOR_OVERLOAD and operator:
        return f"torch.ops.{operator[1]}.{operator[2]}.{operator[3] or 'default'}"
    if call.kind == TargetKind.TARGET_KIND_OPERATOR_PACKET and operator and not operator[3]:
        return f"torch.ops.{operator[1]}.{operator[2]}"
    if call.kind == TargetKind.TARGET_KIND_HIGHER_ORDER_OPERATOR:
        return f"torch.ops.higher_order.{_bare(call.target)}"
    if call.kind == TargetKind.TARGET_KIND_LIBRARY_FUNCTION and operator and not operator[3]:
        return f"{operator[1]}.{operator[2]}"
    return f"Call(kind={call.kind}, target={_quoted(call.target)})"


class MessageWriter:
    """Writes the messages of one graph.

    Args:
        inputs: how many of its nodes, from the first, are inputs.
    """

    def __init__(self, *, inputs: int = 0) -> None:
        self._inputs = inputs
        # By type: the fields that are put into words, and how; empty words where the message is malformed.
        self._forms: Mapping[type[Message], tuple[tuple[str, ...], Callable[[Any], str]]] = {
            Autocast: (("device_type", "enabled", "dtype"), _autocast),
            Call: (("kind", "target", "args", "kwargs"), self._call),
            graph_pb2.Constant: (("spec", "digest"), self._constant),
            Device: (("type", "index"), lambda device: f"device({_quoted(_device(device))})"),
            Dimension: (("size", "expression"), self._dimension),
            Expression: (("integer", "symbol", "operation", "real"), _expression),
            graph_pb2.GetConstant: (("constant",), lambda node: f"constant_{node.constant}"),
            graph_pb2.GetSubgraph: (("subgraph",), lambda node: f"subgraph_{node.subgraph}"),
            Input: (("tensor", "integer", "is_parameter", "is_result", "is_static", "is_frozen"), self._input),
            Launch: (("kernel", "constants", "arguments", "grids"), self._launch),
            graph_pb2.NamedTritonConstant: (("name", "constant"), self._named_constant),
            Output: (("values", "result"), self._output),
            Symbol: (("lower", "upper"), _symbol),
            TritonConstant: (("value", "dtype", "constexpr"), self._triton_constant),
            graph_pb2.TritonGrid: (("x", "y", "z"), lambda grid: self._tuple((grid.x, grid.y, grid.z))),
            TensorSpec: (("dtype", "device", "shape", "stride", "storage_offset", "requires_grad"), self._spec),
        }
        self._values: Mapping[str, Callable[[Any], str]] = {
            "node": self._reference,
            "none": lambda _: "None",
            "boolean": repr,
            "integer": repr,
            "real": repr,
            "text": _quoted,
            "complex": lambda value: f"complex({value.real!r}, {value.imaginary!r})",
            "list": lambda value: f"[{self._items(value.items)}]",
            "tuple": lambda value: self._tuple(value.items),
            "dictionary": lambda value: f"{{{self._named(value.entries, form='{}: {}', name=_quoted)}}}",
            "slice": self._slice,
            "ellipsis": lambda _: "...",
            "dtype": lambda value: f"torch.{_bare(value)}",
            "device": self.say,
            "layout": lambda value: f"torch.{_bare(value)}",
            "memory_format": lambda value: f"torch.{_bare(value)}",
            "process_group": lambda number: f"process_group_{number}",
            "big_integer": lambda value: value if _BIG_INTEGER.fullmatch(value) else f"int({_quoted(value)})",
        }

    def say(self, value: object) -> str:
        """Anything that a message holds."""
        if isinstance(value, Value):
            return self._value(value)
        if isinstance(value, Message):
            return self._message(value)
        if isinstance(value, str | bytes):
            return _quoted(value)
        if isinstance(value, Sequence):
            return f"[{self._items(value)}]"
        return repr(value)

    def rest(self, message: Message, *, known: Sequence[str]) -> Iterator[str]:
        """Yields the fields of a message that are not known."""
        return (f"{field.name}={self.say(value)}" for field, value in message.ListFields() if field.name not in known)

    def _message(self, message: Message) -> str:
        known, form = self._forms.get(type(message), ((), None))
        said = form(message) if form else ""
        rest = ", ".join(self.rest(message, known=known if said else ()))
        if said:
            return f"{said} [{rest}]" if rest else said
        return f"{message.DESCRIPTOR.name}({rest})"

    def _value(self, value: Value) -> str:
        kind = value.WhichOneof("kind")
        form = self._values.get(kind or "")
        return form(getattr(value, kind)) if kind and form else self._message(value)

    def _call(self, call: Call) -> str:
        args: Sequence[Value] = call.args
        if call.kind == TargetKind.TARGET_KIND_TENSOR_METHOD and args:
            name, args = f"{self.say(args[0])}.{_bare(call.target)}", args[1:]
        else:
            name = name_of_target(call)
        keywords = self._named(call.kwargs, form="{}={}", name=_bare)
        return f"{name}({', '.join(filter(None, (self._items(args), keywords)))})"

    def _launch(self, launch: Launch) -> str:
        arguments = self._named(launch.arguments, form="{}={}", name=_bare)
        given = ", ".join(filter(None, (arguments, self._items(launch.constants))))
        return f"kernel_{launch.kernel}[{self._items(launch.grids)}]({given})"

    def _named_constant(self, given: graph_pb2.NamedTritonConstant) -> str:
        return f"{_bare(given.name)}={self.say(given.constant)}"

    def _triton_constant(self, constant: TritonConstant) -> str:
        kind = constant.WhichOneof("kind")
        if kind is None:
            return ""
        said = self.say(constant.value) if kind == "value" else f"dtype({_quoted(constant.dtype)})"
        return f"constexpr({said})" if constant.constexpr else said

    def _output(self, output: Output) -> str:
        if output.HasField("result"):
            return "" if output.values else self.say(output.result)
        return self._tuple(output.values)

    def _reference(self, number: int) -> str:
        return f"input_{number}" if number < self._inputs else f"node_{number}"

    def _items(self, values: Sequence[object]) -> str:
        return _listed(map(self.say, values), count=len(values))

    def _tuple(self, values: Sequence[object]) -> str:
        return f"({self._items(values)}{',' if len(values) == 1 else ''})"

    def _named(self, entries: Sequence[Any], *, form: str, name: Callable[[str], str]) -> str:
        said = (form.format(name(entry.name), self.say(entry.value)) for entry in entries)
        return _listed(said, count=len(entries))

    def _slice(self, value: Any) -> str:
        parts = [getattr(value, name) if value.HasField(name) else None for name in ("start", "stop", "step")]
        return f"slice({self._items(parts)})"

    def _constant(self, constant: graph_pb2.Constant) -> str:
        return f"{self.say(constant.spec)}, sha256 {plain(constant.digest)}"

    def _input(self, given: Input) -> str:
        kind = given.WhichOneof("kind")
        if kind not in ("tensor", "integer"):
            return ""
        said = f"int {self.say(given.integer)}" if kind == "integer" else self.say(given.tensor)
        said += ", parameter" if given.is_parameter else ""
        said += ", result of an operator" if given.is_result else ""
        said += ", frozen" if given.is_frozen else ""
        return f"{said}, static" if given.is_static else said

    def _dimension(self, dimension: Dimension) -> str:
        if dimension.WhichOneof("value") == "size":
            return str(dimension.size)
        # A fixed size has no business in an expression.
        is_fixed = dimension.expression.WhichOneof("value") in (None, "integer")
        return "" if is_fixed else self.say(dimension.expression)

    def _spec(self, spec: TensorSpec) -> str:
        said = (
            f"{_bare(spec.dtype)}[{self._items(spec.shape)}]",
            f"stride {self._tuple(spec.stride)}",
            f"offset {self.say(spec.storage_offset)}" if spec.HasField("storage_offset") else "",
            _device(spec.device) if spec.HasField("device") else "no device",
            "requires_grad" if spec.requires_grad else "",
        )
        return ", ".join(filter(None, said))


def _listed(items: Iterator[str], *, count: int) -> str:
    shown = ", ".join(islice(items, _MAX_ITEMS))
    return shown if count <= _MAX_ITEMS else f"{shown}, ... ({count} in all)"


def _expression(expression: Expression) -> str:
    try:
        check_expression(expression, symbols=1 << 32, condition=False, what="it")
    except InvalidRequest:
        return ""
    return say(expression)


def _symbol(symbol: Symbol) -> str:
    lower = f"at least {symbol.lower}" if symbol.HasField("lower") else ""
    upper = f"at most {symbol.upper}" if symbol.HasField("upper") else ""
    return " and ".join(filter(None, (lower, upper))) or "anything"


def _device(device: Device) -> str:
    return _bare(device.type) + (f":{device.index}" if device.HasField("index") else "")


def _autocast(autocast: Autocast) -> str:
    state = "on" if autocast.enabled else "off"
    return " ".join(filter(None, (_bare(autocast.device_type), state, autocast.dtype and _bare(autocast.dtype))))


def _bare(name: str) -> str:
    """Returns a name as it is, if it is an identifier."""
    return name if _is_name(name) else _quoted(name)


def _is_name(text: str) -> bool:
    return len(text) <= _MAX_TEXT_CHARACTERS and _NAME.fullmatch(text) is not None


def _quoted(text: str | bytes) -> str:
    if len(text) <= _MAX_TEXT_CHARACTERS:
        return ascii(text)
    return f"{text[:_MAX_TEXT_CHARACTERS]!a}... ({len(text)} in all)"
