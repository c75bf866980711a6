"""The graph of a request as a Python function, to be read by people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from compilefarm.cli.messages import MessageWriter, cut, plain
from compilefarm.v1.graph_pb2 import Graph, Node, TritonKernel
from compilefarm.v1.job_pb2 import Job

MAX_LINES = 20_000
_INDENT = "    "


def code_of(job: Job) -> Iterator[str]:
    """Yields the lines of the graph. Nodes and inputs have the numbers that messages of the farm use."""
    lines = _lines(job)
    yield from islice(lines, MAX_LINES)
    if next(lines, None) is not None:
        yield f"# cut after {MAX_LINES} lines; the graph has {len(job.graph.nodes)} nodes"


def body_of(graph: Graph) -> Iterator[str]:
    """Yields the lines of a graph that stand below its head: what it holds, and what it does."""
    inputs = _count_inputs(graph)
    writer = MessageWriter(inputs=inputs)
    for position, constant in enumerate(graph.constants):
        yield cut(f"# constant_{position}: {writer.say(constant)}")
    for position, kernel in enumerate(graph.kernels):
        yield f"# kernel_{position}, in Triton:"
        yield from (cut(f"#     {line}") for line in _kernel(kernel, writer))
    for position, subgraph in enumerate(graph.subgraphs):
        names = ", ".join(f"input_{number}" for number in range(_count_inputs(subgraph)))
        yield cut(f"def subgraph_{position}({names}):")
        yield from (_INDENT + line for line in body_of(subgraph))
    for number, node in enumerate(graph.nodes):
        if node.annotations:
            yield cut(f"# noted beside node {number}: {', '.join(map(writer.say, node.annotations))}")
    for number, node in enumerate(islice(graph.nodes, inputs, None), start=inputs):
        yield cut(_node(node, number=number, writer=writer))
    rest = writer.rest(graph, known=("nodes", "constants", "subgraphs", "kernels"))
    yield from (cut(f"# {line}") for line in rest)


def _kernel(kernel: TritonKernel, writer: MessageWriter) -> Iterator[str]:
    for function in kernel.functions:
        yield from (plain(line) for line in function.source.split("\n") if line)
        # What its lines do not say.
        yield from writer.rest(function, known=("name", "source"))
    yield from writer.rest(kernel, known=("functions",))


def _lines(job: Job) -> Iterator[str]:
    yield "def forward("
    yield from (cut(_INDENT + line) for line in _parameters(job))
    yield "):"
    yield from (cut(f"{_INDENT}# {line}") for line in _symbols(job))
    yield from (_INDENT + line for line in body_of(job.graph))


def _parameters(job: Job) -> Iterator[str]:
    writer, inputs = MessageWriter(), _count_inputs(job.graph)
    for number in range(max(inputs, len(job.inputs))):
        given = writer.say(job.inputs[number]) if number < len(job.inputs) else "not described"
        yield f"{'' if number < inputs else '# no placeholder: '}input_{number},  # {given}"


def _symbols(job: Job) -> Iterator[str]:
    writer = MessageWriter()
    for number in range(max(len(job.symbols), len(job.hints))):
        known = writer.say(job.symbols[number]) if number < len(job.symbols) else "not described"
        hint = f"{job.hints[number]} in the call that asked" if number < len(job.hints) else "not known for a call"
        yield f"s{number}: {known}; {hint}"


def _node(node: Node, *, number: int, writer: MessageWriter) -> str:
    kind = node.WhichOneof("operation")
    if kind == "output":
        return f"return {writer.say(node.output)}"
    is_known = kind in ("call", "get_constant", "get_subgraph", "launch")
    return f"node_{number} = {writer.say(getattr(node, kind) if kind and is_known else node)}"


def _count_inputs(graph: Graph) -> int:
    return next(
        (number for number, node in enumerate(graph.nodes) if not node.HasField("placeholder")), len(graph.nodes)
    )
