"""What a request may call with the torch that is installed: names, tables, and how quick they are."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import admitted_operators, operators, targets
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.testing import capture
from tests.lean import LEAN


def test_every_admitted_name_resolves_to_what_it_names() -> None:
    functions = targets._torch_functions()
    assert len(functions) > 1000
    for name, function in functions.items():
        kind, given = targets.name_target(function)
        assert targets.get_target(kind, name=given) == function, name


def test_attributes_that_are_operators() -> None:
    # torch/csrc/autograd/python_variable.cpp: PropertyT, PropertymT, PropertyH and PropertymH. What Dynamo writes as
    # one of these operators is sent as the attribute.
    x = torch.randn(2, 3, dtype=torch.complex64)
    for name, attribute in targets.ATTRIBUTE_OPERATORS.items():
        by_operator, by_attribute = getattr(torch.ops.aten, name.partition("::")[2])(x), getattr(x, attribute)
        assert torch.equal(by_operator, by_attribute)
        assert by_operator.stride() == by_attribute.stride()
        assert by_operator.data_ptr() == by_attribute.data_ptr()
        assert by_operator.is_conj() == by_attribute.is_conj()


def test_a_method_that_is_called_as_a_function_is_sent_as_a_method() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.Tensor.split(x, 2)

    captured = capture(program, torch.randn(4, 3))
    (split,) = (node for node in captured.graph_module.graph.nodes if "split" in node.name)
    assert targets.name_call(split) == (targets.TENSOR_METHOD, "split", split.args)
    calls = [node.call for node in captured.encode().job.graph.nodes if node.HasField("call")]
    assert (targets.TENSOR_METHOD, "split") in [(call.kind, call.target) for call in calls]


def test_a_function_that_another_put_in_the_place_of_a_method_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def split(x: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        return (x[:size], x[size:])

    graph = torch.fx.Graph()
    call = graph.call_function(split, (graph.placeholder("x"), 2))
    with pytest.raises(Bypass, match="split"):
        targets.name_call(call)
    monkeypatch.setattr(torch.Tensor, "split", split)
    with pytest.raises(Bypass, match="something of its own"):
        targets.name_call(call)


def test_tables_are_quick_to_make_where_dynamo_is_at_work() -> None:
    program = (
        "import time, torch, torch._dynamo.trace_rules\n"
        "from compilefarm.graph import targets\n"
        "started = time.process_time()\n"
        "targets.name_target(torch.conv2d), targets._tensor_methods(), targets.name_target(torch.ops.aten.relu)\n"
        "print(time.process_time() - started)"
    )
    # 20 to 40 ms of a processor; that one of three is quick keeps a busy machine from failing this.
    for _ in range(3):
        done = subprocess.run([sys.executable, LEAN, "-c", program], capture_output=True, text=True, check=True)
        if float(done.stdout) < 0.25:
            return
    raise AssertionError(f"{done.stdout.strip()} seconds")


def test_refusal_takes_no_time() -> None:
    started = time.perf_counter()
    for number in range(1000):
        try:
            targets.get_target(targets.OPERATOR_OVERLOAD, name=f"nowhere{number}::nothing")
        except InvalidRequest:
            continue
        raise AssertionError(number)
    assert time.perf_counter() - started < 5


def test_operators_that_are_admitted_exist() -> None:
    # A name that a release lacks is refused, and graphs that hold it are compiled locally.
    known = {operators.base_of(name).removesuffix("_") for name in operators.operators_of_torch()}
    methods = set(dir(torch.Tensor)) | {"as_tensor", "tensor", "unravel_index"}
    is_newest = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    lacking = {name.removesuffix("_") for name in admitted_operators._ATEN} - known - methods
    assert not is_newest or lacking == set()


def test_operators_that_graphs_of_exported_programs_hold_are_admitted() -> None:
    # torch/_C/_TagEnum: core is what torch.export decomposes programs to.
    core = [
        name
        for name in operators.operators_of_torch()
        if torch.Tag.core in operators.find_operator(name, is_overload=True).tags  # type: ignore[union-attr]
    ]
    assert len(core) > 150
    names = {operators.base_of(name) for name in core if not admitted_operators.is_admitted(operators.base_of(name))}
    assert not {name for name in names if not name.endswith("_backward") and not name.startswith("_")}
