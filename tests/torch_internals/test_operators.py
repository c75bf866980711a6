"""Canaries of torch_internals/operators.py."""

from __future__ import annotations

import pytest
import torch

from compilefarm.graph import operators as ours
from compilefarm.graph import targets
from compilefarm.torch_internals import operators
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, OpOverloadPacket


@pytest.mark.parametrize(
    ("target", "kind", "name"),
    [
        (torch.ops.aten.add.Tensor, OpOverload, "aten::add.Tensor"),
        (torch.ops.aten.relu.default, OpOverload, "aten::relu"),
        (torch.ops.aten.relu, OpOverloadPacket, "aten::relu"),
        (torch.ops.aten.__and__, OpOverloadPacket, "aten::__and__"),
        (torch.ops.aten.__and__.Tensor, OpOverload, "aten::__and__.Tensor"),
        (torch.ops.prims.convert_element_type.default, OpOverload, "prims::convert_element_type"),
    ],
)
def test_kinds_and_names(target: object, kind: type, name: str) -> None:
    assert type(target) is kind
    given = operators.name_of_packet(target) if isinstance(target, OpOverloadPacket) else target.name()  # type: ignore[attr-defined]
    assert given == name
    assert targets.name_target(target)[1] == name


def test_namespaces_hold_operators() -> None:
    assert operators.holds_operators(torch.ops)
    assert operators.holds_operators(torch.ops.aten)
    assert not operators.holds_operators(torch)
    # A namespace says its name, and an operator stays where it was found.
    assert (torch.ops.aten.__name__, vars(torch.ops)["aten"]) == ("torch.ops.aten", torch.ops.aten)


def test_what_is_asserted_ends_the_run() -> None:
    operators.assert_when_run(torch.tensor(True), "right")
    with pytest.raises(RuntimeError, match="wrong"):
        operators.assert_when_run(torch.tensor(False), "wrong")


def test_schemas_say_what_is_written_to() -> None:
    # torch/csrc/jit/python/init.cpp: FunctionSchema.is_mutable, Argument.alias_info.is_write.
    schema = operators.schema_of(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default)
    written = [given.name for given in schema.arguments if given.alias_info is not None and given.alias_info.is_write]
    assert (schema.is_mutable, written) == (True, ["self", "found_inf"])
    assert schema.name == "aten::_amp_foreach_non_finite_check_and_unscale_"
    assert not operators.schema_of(torch.ops.aten.add.Tensor).is_mutable


def test_schemas_tell_dtypes_from_numbers() -> None:
    # The types of arguments are those of TorchScript, the real ones those of ATen.
    schema = operators.schema_of(torch.ops.aten.to.dtype)
    assert [str(argument.real_type) for argument in schema.arguments][:2] == ["Tensor", "ScalarType"]
    assert {overload.name() for overload in ours.overloads_of(torch.ops.aten.relu)} == {"aten::relu", "aten::relu.out"}
    # TorchScript alone adds texts.
    assert "str" in torch.ops.aten.add.overloads()
    assert "aten::add.str" not in {overload.name() for overload in ours.overloads_of(torch.ops.aten.add)}


def test_the_dispatcher_names_all_operators() -> None:
    names = operators.registered_names()
    assert {"aten::add.Tensor", "aten::relu"} <= names
    assert len(names) > 2000


def test_operators_that_inductor_registers() -> None:
    operators.register_further_operators()
    assert "prims::fma" in operators.registered_names()
    assert "prims::fma" in ours.operators_of_torch()


def test_operators_of_quantized_models() -> None:
    operators.register_quantized_operators()
    assert "quantized_decomposed::quantize_per_tensor" in operators.registered_names()
    assert "quantized_decomposed::quantize_per_tensor" in ours.operators_of_torch()


def test_operators_that_decompositions_are_made_of() -> None:
    operators.register_further_operators()
    assert torch.ops.prims.convert_element_type(torch.ones(1), torch.int64).dtype is torch.int64


def test_operators_that_call_subgraphs() -> None:
    known = operators.higher_order_operators()
    assert isinstance(known["cond"], HigherOrderOperator)
    later = {"register_hook", "switch"} if torch.__version__ < "2.15" else set[str]()
    assert set(targets._HIGHER_ORDER) - known.keys() <= later
    for name in set(targets._HIGHER_ORDER) - later:
        assert known[name].name() == name
        assert targets.get_target(targets.HIGHER_ORDER_OPERATOR, name=name) is known[name]
