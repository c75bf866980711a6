"""A backend that sends every graph through the codec, and runs what comes out of it beside the original."""

from __future__ import annotations

import copy
import tempfile
import traceback
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from google.protobuf.message import Message
from torch.fx import GraphModule

from compilefarm.client.local import is_for_dynamo
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.symbols import Symbols
from compilefarm.graph.tracing import fixing_deciding_floats, fixing_floats
from compilefarm.loader.environment import describe_environment
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.job_pb2 import Job

from .comparison import Leaf, differences, look_at

Outcome = Literal["sent", "bypass", "crash"]


@dataclass(slots=True, kw_only=True)
class GraphReport:
    """What became of one captured graph.

    Attributes:
        outcome: "sent" if it was, or could be; "bypass" if the client decided against it; "crash" if something raised
            that should not have, or the farm was asked in vain.
        reason: of a bypass, or of a refusal by the farm.
        message: the same for people.
        compiled: an artifact came back.
        unfaithful: in what a decoded graph differs from the original.
    """

    outcome: Outcome
    reason: str = ""
    message: str = ""
    compiled: bool = False
    unfaithful: list[str] = field(default_factory=list)


class CodecBackend:
    """A backend of torch.compile; `reports` has an entry for each graph."""

    def __init__(self) -> None:
        self.reports: list[GraphReport] = []

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # As Farm.backend does.
        with fixing_floats(graph_module):
            if TorchRuntime().needs_plain_graphs(graph_module, example_inputs):
                return self._run_parts(graph_module, example_inputs)
            return self._run(graph_module, example_inputs)

    def _run_parts(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            return TorchRuntime().compile_plain_graphs(
                graph_module,
                example_inputs,
                options={},
                compile_plain=lambda plain: _without_gradients(
                    self._run(plain.graph_module, plain.inputs, is_functional=True)
                ),
            )
        except Exception as error:
            if is_for_dynamo(error):
                raise
            # Compiled locally, where it may fail as well.
            self.reports.append(GraphReport(outcome="bypass", reason="plain_graphs", message=str(error)))
            return _forward(graph_module)

    def _run(
        self, graph_module: GraphModule, example_inputs: Sequence[Any], *, is_functional: bool = False
    ) -> Callable[..., Any]:
        try:
            with fixing_deciding_floats(graph_module):
                encoded = _encoded(graph_module, example_inputs, is_functional=is_functional)
            decoded, is_same = _there_and_back(encoded, is_functional=is_functional)
        except Bypass as bypass:
            self.reports.append(GraphReport(outcome="bypass", reason=bypass.reason, message=str(bypass)))
            return _forward(graph_module)
        except Exception as error:
            if is_for_dynamo(error):
                raise
            # Whatever else the codec raises is what this is about.
            report = GraphReport(outcome="crash", reason=type(error).__name__, message=traceback.format_exc())
            self.reports.append(report)
            return _forward(graph_module)
        report = GraphReport(outcome="sent")
        self.reports.append(report)
        if not is_same:
            report.unfaithful.append("encoding what was decoded gives another request")
        return _beside(graph_module, decoded, held=encoded.held, report=report)


def _encoded(graph_module: GraphModule, inputs: Sequence[Any], *, is_functional: bool = False) -> EncodedJob:
    return encode_job(graph_module, inputs, options={}, environment=describe_environment, is_functional=is_functional)


def _there_and_back(encoded: EncodedJob, *, is_functional: bool = False) -> tuple[GraphModule, bool]:
    """The decoded graph, and whether its request is the same again."""
    # As it arrives: through bytes.
    job = Job.FromString(encoded.job.SerializeToString(deterministic=True))
    with apply_ambient(job.ambient):
        decoded = decode_job(job, blobs=encoded.blobs, operators=_operators(job), kernels=_kernels(job))
        if any(type(given) is int for given in decoded.inputs):
            # A symbol that is known to be one number is decoded as that number, of which Dynamo makes no input.
            return decoded.graph_module, True
        if job.graph.constants:
            # What the graph holds comes back as literals, which are nodes of their own.
            return decoded.graph_module, True
        again = _encoded(decoded.graph_module, decoded.inputs, is_functional=is_functional)
    expected = _content(encoded, numbers=_merged(decoded.symbolic.symbols))
    return decoded.graph_module, _content(again) == expected


def _merged(symbols: Symbols) -> list[int]:
    """The number of each symbol when those that the graph takes for equal are one, which is known once it has run."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value.node.expr, len(numbers)) for value in symbols.values]


def _operators(job: Job) -> set[str]:
    """What a worker that fits may call, with and without overloads."""
    overloads = {operator.name for operator in job.environment.operators}
    return overloads | {name.partition(".")[0] for name in overloads}


def _kernels(job: Job) -> list[Any]:
    """The Triton kernels of a graph, rebuilt."""
    if not job.graph.kernels:
        return []
    from compilefarm.graph.triton_modules import build_kernels

    with tempfile.TemporaryDirectory() as folder:
        return build_kernels(job.graph.kernels, folder=Path(folder))


def _content(encoded: EncodedJob, *, numbers: Sequence[int] = ()) -> bytes:
    # What the graph assumes of its symbols is known of them once it has run.
    job = Job()
    job.CopyFrom(encoded.job)
    job.ClearField("symbols")
    if len(set(numbers)) < len(numbers):
        _renumber(job, numbers)
        job.hints[:] = dict(zip(numbers, job.hints, strict=True)).values()
    return job.SerializeToString(deterministic=True)


def _without_gradients(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program of a part: gradients are of what is around it, and what it hands through has none in it."""
    # Offsets of jagged tensors are known by being the same object.
    return lambda *inputs: program(*(value.detach() if _is_tracked(value) else value for value in inputs))


def _is_tracked(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _renumber(message: Message, numbers: Sequence[int]) -> None:
    if isinstance(message, Expression) and message.WhichOneof("value") == "symbol":
        message.symbol = numbers[message.symbol]
    for _, value in message.ListFields():
        for part in value if isinstance(value, MutableSequence) else [value]:
            if isinstance(part, Message):
                _renumber(part, numbers)


def _forward(graph_module: GraphModule) -> Callable[..., Any]:
    forward: Callable[..., Any] = graph_module.forward
    return forward


def _beside(
    original: GraphModule, decoded: GraphModule, *, held: Sequence[torch.Tensor], report: GraphReport
) -> Callable[..., Any]:
    """Runs the decoded graph, after the original on copies of its inputs; both have what the original holds."""

    def run(*inputs: Any) -> Any:
        twins = _copies(inputs)
        held_before = [tensor.detach().clone() for tensor in held]
        random_state = torch.random.get_rng_state()
        expected = _seen(original(*twins), (*twins, *held))
        torch.random.set_rng_state(random_state)
        for tensor, before in zip(held, held_before, strict=True):
            tensor.detach().copy_(before)
        outputs = decoded(*inputs, *held)
        report.unfaithful.extend(differences(_seen(outputs, (*inputs, *held)), expected))
        return outputs

    return run


def _seen(outputs: Any, inputs: Sequence[Any]) -> list[Leaf]:
    # Gradients are not looked at: those of the inputs may be of earlier calls.
    detached = [given.detach() if isinstance(given, torch.Tensor) else given for given in inputs]
    return [*look_at("output", list(outputs)), *look_at("input", detached)]


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """Copies that share memory with each other where the originals do."""
    detached = [given.detach() if isinstance(given, torch.Tensor) else given for given in inputs]
    return [_tracked_as(given, twin) for given, twin in zip(inputs, copy.deepcopy(detached), strict=True)]


def _tracked_as(given: Any, twin: Any) -> Any:
    if not isinstance(given, torch.Tensor) or not given.requires_grad:
        return twin
    if given.is_leaf:
        return twin.requires_grad_()
    # Only what is no leaf may be written to while it is tracked. A graph may run where nothing is.
    with torch.enable_grad():
        return _Tracked.apply(torch.zeros((), requires_grad=True), twin)


class _Tracked(torch.autograd.Function):
    """Hands a tensor through as a result that is tracked, in the same memory."""

    @staticmethod
    def forward(_: Any, __: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        # What is no view for autograd: a view of what is not tracked may not be written to.
        return tensor.data

    @staticmethod
    def backward(_: Any, *__: torch.Tensor) -> tuple[None, None]:
        return None, None
