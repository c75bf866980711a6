"""A request as text: readable, complete, and harmless whatever a stranger wrote into it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from compilefarm.cli import listing
from compilefarm.cli.facts import differences, facts_of
from compilefarm.cli.listing import code_of
from compilefarm.cli.messages import words
from compilefarm.core.keys import PART_NAMES, key_of
from compilefarm.core.testing import Mutator
from compilefarm.v1 import graph_pb2
from compilefarm.v1.environment_pb2 import Cuda
from compilefarm.v1.graph_pb2 import (
    Complex,
    Device,
    Dictionary,
    Ellipsis,
    Expression,
    Input,
    Launch,
    NamedValue,
    Node,
    Operation,
    Sequence,
    Slice,
    TargetKind,
    TritonConstant,
    TritonFunction,
    TritonGlobal,
    Value,
)
from compilefarm.v1.job_pb2 import Job, Symbol

from .requests import small_job

CODE = """\
def forward(
    input_0,  # float32[2, 4], stride (4, 1), cpu
    input_1,  # float32[3, 4], stride (4, 1), cpu, requires_grad, parameter
):
    # constant_0: int64[3], stride (1,), cpu, sha256 9d908ecfb6b256def8b49a7c504e6c889c4b0e41fe6ce3e01863dd7b61a20aa0
    node_2 = constant_0
    node_3 = torch._C._nn.linear(input_0, input_1)
    node_4 = node_3.sum(-1, keepdim=True)
    node_5 = torch.ops.aten.add.Tensor(node_4, node_2)
    node_6 = torch.ops.aten.relu(node_5)
    node_7 = operator.mul(node_6, 0.5)
    return (node_7,)"""


def _sequence(*values: Value) -> Sequence:
    return Sequence(items=values)


def _none() -> Value:
    value = Value()
    value.none.SetInParent()
    return value


VALUES = {
    "None": _none(),
    "False": Value(boolean=False),
    "-3": Value(integer=-3),
    "inf": Value(real=float("inf")),
    "-0.0": Value(real=-0.0),
    "'it is\\n'": Value(text="it is\n"),
    "complex(1.0, -2.0)": Value(complex=Complex(real=1, imaginary=-2)),
    "[1, [2]]": Value(list=_sequence(Value(integer=1), Value(list=_sequence(Value(integer=2))))),
    "()": Value(tuple=_sequence()),
    "(1,)": Value(tuple=_sequence(Value(integer=1))),
    "([1, 2],)": Value(tuple=_sequence(Value(list=_sequence(Value(integer=1), Value(integer=2))))),
    "{'a': 1, 'b c': None}": Value(
        dictionary=Dictionary(
            entries=[NamedValue(name="a", value=Value(integer=1)), NamedValue(name="b c", value=_none())]
        )
    ),
    "slice(1, None, None)": Value(slice=Slice(start=Value(integer=1))),
    "...": Value(ellipsis=Ellipsis()),
    "torch.float32": Value(dtype="float32"),
    "device('cuda:0')": Value(device=Device(type="cuda", index=0)),
    "device('cuda')": Value(device=Device(type="cuda")),
    "torch.strided": Value(layout="strided"),
    "torch.channels_last": Value(memory_format="channels_last"),
    "9223372036854775808": Value(big_integer="9223372036854775808"),
    "process_group_1": Value(process_group=1),
    "node_7": Value(node=7),
    "Value()": Value(),
}


def test_a_graph_reads_like_python() -> None:
    assert "\n".join(code_of(small_job())) == CODE


def test_sizes_that_differ_from_call_to_call() -> None:
    job = small_job()
    half = Operation(operator=graph_pb2.OPERATOR_FLOOR_DIV, operands=[Expression(symbol=0), Expression(integer=2)])
    job.inputs[0].tensor.shape[0].expression.operation.CopyFrom(half)
    job.inputs.add().integer.symbol = 0
    job.graph.nodes.insert(2, job.graph.nodes[0])
    job.symbols.extend([Symbol(lower=2, upper=64), Symbol(), Symbol(lower=-1)])
    job.hints.extend([8, 9])
    assert list(code_of(job))[1:8] == [
        "    input_0,  # float32[s0//2, 4], stride (4, 1), cpu",
        "    input_1,  # float32[3, 4], stride (4, 1), cpu, requires_grad, parameter",
        "    input_2,  # int s0",
        "):",
        "    # s0: at least 2 and at most 64; 8 in the call that asked",
        "    # s1: anything; 9 in the call that asked",
        "    # s2: at least -1; not known for a call",
    ]


def test_malformed_expressions_are_written_field_by_field() -> None:
    expression = Expression(operation=Operation(operator=99, operands=[Expression()]))
    assert words(expression) == "Expression(operation=Operation(operator=99, operands=[Expression()]))"


@pytest.mark.parametrize("text", VALUES)
def test_values(text: str) -> None:
    assert words(VALUES[text]) == text


def test_facts_of_every_part() -> None:
    job = small_job()
    job.environment.cuda.CopyFrom(Cuda(name="NVIDIA H200", multiprocessors=132))
    assert facts_of(job.options) == {"inductor.max_autotune": "True"}
    ambient = facts_of(job.ambient)
    assert ambient["grad_enabled"] == "True"
    assert ambient["inference_mode"] == "False"
    assert ambient["autocast[0]"] == "cpu on bfloat16"
    assert ambient["backends.cudnn.allow_tf32"] == "False"
    environment = facts_of(job.environment)
    assert environment["cpu.instruction_sets"] == ["avx2", "fma"]
    assert environment["cuda.name"] == "NVIDIA H200"
    assert environment["triton"] == "''"
    job.environment.ClearField("cuda")
    assert not any(name.startswith("cuda") for name in facts_of(job.environment))


def test_differences_in_words() -> None:
    first, second = small_job(), small_job()
    second.options.inductor.pop()
    second.ambient.grad_enabled = False
    second.environment.cpu.instruction_sets[:] = ["avx2", "avx512f"]
    second.inputs.pop()
    assert differences(first, second, part="options") == ["options.inductor.max_autotune: True / not set"]
    assert differences(first, second, part="ambient") == ["ambient.grad_enabled: True / False"]
    assert differences(first, second, part="environment") == [
        "environment.cpu.instruction_sets: only fma / only avx512f"
    ]
    assert differences(first, second, part="inputs") == [
        "inputs[1]: float32[3, 4], stride (4, 1), cpu, requires_grad, parameter / not set"
    ]


def test_differences_of_graphs_name_the_first_node_and_count_calls() -> None:
    first, second = small_job(), small_job()
    second.graph.nodes.insert(6, second.graph.nodes[6])
    second.graph.nodes[7].call.target = "aten::neg"
    found = differences(first, second, part="graph")
    assert found[0] == "nodes: 9 / 10"
    assert (
        found[1] == "first line that differs: node_7 = operator.mul(node_6, 0.5) / node_7 = torch.ops.aten.neg(node_5)"
    )
    assert found[2:] == ["calls of torch.ops.aten.neg: 0 / 1"]


def test_a_part_that_differs_in_what_is_not_told_apart_says_so() -> None:
    first, second = small_job(), small_job()
    first.graph.nodes[4].call.args.add().slice.start.none.SetInParent()
    second.graph.nodes[4].call.args.add().slice.SetInParent()
    assert differences(first, second, part="graph") == ["in what a listing does not tell apart"]


def test_differences_are_bounded() -> None:
    first, second = small_job(), small_job()
    second.inputs.extend([Input()] * 1000)
    assert len(differences(first, second, part="inputs")) == 51
    assert differences(first, second, part="inputs")[-1] == "and 950 more"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job, text: setattr(job.graph.nodes[3].call, "target", text),
        lambda job, text: setattr(job.graph.nodes[4].call, "target", text),
        lambda job, text: setattr(job.graph.nodes[5].call, "target", f"aten::{text}"),
        lambda job, text: setattr(job.graph.nodes[4].call.kwargs[0], "name", text),
        lambda job, text: job.graph.nodes[3].call.args.add(text=text),
        lambda job, text: job.graph.nodes[3].call.args.add(dtype=text),
        lambda job, text: job.graph.nodes[3].call.args.add(big_integer=text),
        lambda job, text: job.graph.nodes[3].call.args.add(device=Device(type=text)),
        lambda job, text: job.graph.nodes[3].call.args.add().dictionary.entries.add(name=text),
        lambda job, text: setattr(job.graph.constants[0], "digest", text),
        lambda job, text: setattr(job.inputs[0].tensor, "dtype", text),
        lambda job, text: setattr(job.inputs[0].tensor.device, "type", text),
        lambda job, text: setattr(job.options.inductor[0], "name", text),
        lambda job, text: setattr(job.ambient.autocast[0], "dtype", text),
        lambda job, text: setattr(job.ambient, "default_dtype", text),
        lambda job, text: setattr(job.environment, "torch", text),
        lambda job, text: job.environment.cpu.instruction_sets.append(text),
    ],
)
def test_texts_of_strangers_stay_texts(spoil: Callable[[Job, str], object]) -> None:
    for text in ("\x1b]0;owned\x07", "a\nnode_9 = done()", "\u202ereversed", "\x9b2J", "\r", "é", "x" * 100_000):
        job = small_job()
        spoil(job, text)
        lines = _everything(job)
        assert all(line.isascii() and line.isprintable() and len(line) < 2100 for line in lines), text
        assert lines != _everything(small_job())


def test_what_looks_like_a_name_but_is_none_is_quoted() -> None:
    job = small_job()
    job.graph.nodes[3].call.target = "torch.relu(x) or torch.relu"
    assert "    node_3 = Call(kind=1, target='torch.relu(x) or torch.relu')(input_0, input_1)" in code_of(job)


def test_graphs_within_graphs() -> None:
    job, other = small_job(), small_job()
    for each, target in ((job, "neg"), (other, "abs")):
        inner = each.graph.subgraphs.add(nodes=[each.graph.nodes[0], each.graph.nodes[4]])
        inner.nodes[1].call.target = target
        inner.nodes[1].call.args[0].node = 0
        inner.nodes.add().output.result.node = 1
        each.graph.subgraphs.add().subgraphs.add()
        each.graph.nodes[6].get_subgraph.subgraph = 0
        each.graph.nodes[7].call.kind = TargetKind.TARGET_KIND_HIGHER_ORDER_OPERATOR
        each.graph.nodes[7].call.target = "wrap"
    assert list(code_of(job))[4:] == [
        *CODE.splitlines()[4:5],
        "    def subgraph_0(input_0):",
        "        node_1 = input_0.neg(-1, keepdim=True)",
        "        return node_1",
        "    def subgraph_1():",
        "        def subgraph_0():",
        *CODE.splitlines()[5:9],
        "    node_6 = subgraph_0",
        "    node_7 = torch.ops.higher_order.wrap(node_6, 0.5)",
        "    return (node_7,)",
    ]
    assert differences(job, other, part="graph") == [
        "first line that differs: node_1 = input_0.neg(-1, keepdim=True) / node_1 = input_0.abs(-1, keepdim=True)",
        "calls of Tensor.neg: 1 / 0",
        "calls of Tensor.abs: 0 / 1",
    ]


def test_graphs_that_contradict_themselves_are_shown_all_the_same() -> None:
    job = small_job()
    job.inputs.pop()
    job.inputs.pop()
    job.graph.nodes[3].call.args[0].node = 4_000_000_000
    job.graph.nodes[4].Clear()
    job.graph.nodes[5].call.kind = 99
    job.graph.nodes.append(Node(placeholder=job.graph.nodes[0].placeholder))
    assert list(code_of(job))[1:] == [
        "    input_0,  # not described",
        "    input_1,  # not described",
        "):",
        *CODE.splitlines()[4:6],
        "    node_3 = torch._C._nn.linear(node_4000000000, input_1)",
        "    node_4 = Node()",
        "    node_5 = Call(kind=99, target='aten::add.Tensor')(node_4, node_2)",
        *CODE.splitlines()[9:],
        "    node_9 = Node(placeholder=Placeholder())",
    ]
    job = small_job()
    job.inputs.add()
    assert "    # no placeholder: input_2,  # Input()" in code_of(job)


def test_long_graphs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LINES", 10)
    lines = list(code_of(small_job()))
    assert lines[-1] == "# cut after 10 lines; the graph has 9 nodes"
    assert len(lines) == 11


def test_calls_with_a_great_many_arguments_are_cut() -> None:
    job = small_job()
    job.graph.nodes[3].call.args.extend([Value(integer=0)] * 100_000)
    assert words(job.graph.nodes[3].call.args).endswith("characters in all)")
    assert words(job.graph.nodes[3].call.args[2:600]) == f"[{', '.join('0' * 598)}]"
    nested = Value()
    nested.list.items.extend([Value()] * 2000)
    assert words(nested).startswith("[Value(), Value(), ")


def test_facts_have_an_end() -> None:
    job = small_job()
    job.options.inductor.extend([NamedValue(name="again")] * 30_000)
    assert len(facts_of(job.options)) == 20_000


def test_what_there_is_no_form_for_is_written_field_by_field() -> None:
    # Job stands for a message of a later release.
    job = Job(options=small_job().options)
    assert words(job) == "Job(options=Options(inductor=[NamedValue(name='max_autotune', value=True)]))"


def _everything(job: Job) -> list[str]:
    facts = (facts_of(getattr(job, name), name=name) for name in PART_NAMES if name != "graph")
    said = (f"{name}: {fact}" for name, fact in itertools.chain.from_iterable(found.items() for found in facts))
    return [*code_of(job), *said]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(random=st.randoms(use_true_random=False), changes=st.integers(1, 5))
def test_whatever_decides_the_key_is_shown(random: Random, changes: int) -> None:
    job = small_job()
    mutator = Mutator(random)
    for _ in range(changes):
        mutator.mutate(job)
    lines = _everything(job)
    assert all(line.isascii() and line.isprintable() for line in lines)
    if key_of(job) != key_of(small_job()) and not _says_nothing(job):
        assert lines != _everything(small_job())


def _says_nothing(message: Message) -> bool:
    """Whether it has a None where it could have nothing, or an empty message."""
    return any(
        (isinstance(value, Slice) and "none" in {part.WhichOneof("kind") for _, part in value.ListFields()})
        for value in _below(message)
    )


def _below(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for below in [value] if isinstance(value, Message) else value:
                found += _below(below)
    return found


def test_what_is_noted_beside_a_node_is_shown() -> None:
    job = small_job()
    job.graph.nodes[6].annotations.add(name="custom.fallback_to_eager", value=Value(boolean=True))
    (line,) = (line for line in code_of(job) if "noted beside" in line)
    assert line.strip().startswith("# noted beside node 6: ")
    assert "custom.fallback_to_eager" in line
    assert "True" in line


@pytest.mark.parametrize("kind", [kind for kind in TargetKind.values() if kind])
def test_every_kind_of_target_has_a_form(kind: TargetKind.ValueType) -> None:
    job = small_job()
    job.graph.nodes[6].call.kind = kind
    job.graph.nodes[6].call.target = {
        1: "torch.relu",
        2: "math.exp",
        3: "aten::relu",
        4: "aten::relu",
        7: "einops::rearrange",
    }.get(kind, "relu")
    assert "Call(" not in "\n".join(code_of(job))


def test_a_kernel_and_its_launch() -> None:
    job = small_job()
    function = TritonFunction(name="kernel", source="def kernel(x, \x1b[31m):\n    pass", noinline=True)
    job.graph.kernels.add(functions=[function], globals=[TritonGlobal(name="tl", module="triton.language")])
    launch = Launch(
        arguments=[NamedValue(name="x", value=Value(node=3))],
        constants=[
            {"name": "N", "constant": TritonConstant(value=Value(integer=2), constexpr=True)},
            {"name": "T", "constant": TritonConstant(dtype="fp32")},
        ],
        grids=[{"x": Value(node=0), "y": Value(integer=1), "z": Value(integer=1)}],
    )
    job.graph.nodes.insert(4, Node(launch=launch))
    lines = [line.strip() for line in code_of(job)]
    start = lines.index("# kernel_0, in Triton:")
    assert [line.removeprefix("#").strip() for line in lines[start + 1 : start + 5]] == [
        r"'def kernel(x, \x1b[31m):'",
        "pass",
        "noinline=True",
        "globals=[TritonGlobal(name='tl', module='triton.language')]",
    ]
    assert "node_4 = kernel_0[(input_0, 1, 1)](x=node_3, N=constexpr(2), T=dtype('fp32'))" in lines
