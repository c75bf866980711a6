"""Canaries: each says which private name of torch a release has moved, and what leans on it."""

from __future__ import annotations

import subprocess
import sys
import time
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilefarm.core.compiler_settings import Word
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.graph import admitted_operators, bodies, dispatch, operators, settings, targets, tracing

_IS_NEWEST = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
# What every model is made of.
COMMON_FUNCTIONS = (
    torch.conv2d,
    torch.cat,
    torch.arange,
    torch.nn.functional.linear,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    torch.nn.functional.layer_norm,
    torch.nn.functional.batch_norm,
    torch.nn.functional.max_pool2d,
    torch.nn.functional.embedding,
    torch.nn.functional.dropout,
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.interpolate,
    torch.linalg.norm,
    torch.fft.rfft,
    torch.special.expit,
    torch.einsum,
)


def test_dynamos_tables_of_functions() -> None:
    # torch/_dynamo/trace_rules.py: torch_c_binding_in_graph_functions, torch_non_c_binding_in_graph_functions and
    # load_object. Without them no function can be named.
    for function in COMMON_FUNCTIONS:
        kind, name = targets.name_target(function)
        assert kind == targets.TORCH_FUNCTION
        assert targets.get_target(kind, name=name) is function


def test_every_admitted_name_resolves_to_what_it_names() -> None:
    functions = targets._torch_functions()
    assert len(functions) > 1000
    for name, function in functions.items():
        kind, given = targets.name_target(function)
        assert targets.get_target(kind, name=given) == function, name


def test_names_of_operators() -> None:
    # torch._C._dispatch_get_all_op_names, OpOverload.name() and OpOverloadPacket._qualified_op_name (torch/_ops.py).
    for target, name in (
        (torch.ops.aten.add.Tensor, "aten::add.Tensor"),
        (torch.ops.aten.relu.default, "aten::relu"),
        (torch.ops.aten.relu, "aten::relu"),
        (torch.ops.aten.__and__.Tensor, "aten::__and__.Tensor"),
        (torch.ops.prims.convert_element_type.default, "prims::convert_element_type"),
    ):
        kind, given = targets.name_target(target)
        assert given == name
        assert targets.get_target(kind, name=name) is target


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


def test_usage_log() -> None:
    # torch._C._log_api_usage_once (torch/csrc/Module.cpp): dropped from graphs.
    assert targets.is_log_call(torch._C._log_api_usage_once)


def test_grad_mode_switch() -> None:
    # torch._C._set_grad_enabled: how Dynamo writes torch.no_grad() inside a model.
    kind, name = targets.name_target(torch._C._set_grad_enabled)
    assert name == targets.GRAD_MODE
    assert targets.get_target(kind, name=name) is torch._C._set_grad_enabled


def test_operators_are_seen_while_graphs_run_on_fake_tensors() -> None:
    # torch/_subclasses/fake_tensor.py: FakeTensorMode.dispatch, by which every operator goes, and operators alone.
    seen: list[str] = []

    def watch(operator: OpOverload, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        seen.append(operator.name())
        return run()

    with FakeTensorMode():
        x = torch.ones(2, 3)
        with dispatch.watching_operators(watch):
            x[0].mul_(2)
            torch._foreach_add_([x], 1.0)
        torch.neg(x)
    assert {"aten::select.int", "aten::mul_.Tensor", "aten::_foreach_add_.Scalar"} <= set(seen)
    assert "aten::neg" not in seen


def test_what_settles_the_order_of_attention() -> None:
    # aten/src/ATen/native/transformers/attention.cpp: _fused_sdp_choice; torch/csrc/Module.cpp:
    # _get_sdp_priority_order. Backends have the numbers of torch.nn.attention.SDPBackend.
    query = torch.rand(1, 1, 8, 8)
    assert torch._fused_sdp_choice(query, query, query) in settings.attention_order()


def test_where_torch_keeps_what_operators_become() -> None:
    # torch/library.py: _impls, Library._op_impls; torch/_decomp/__init__.py; torch/_inductor/lowering.py and
    # decomposition.py; torch/_inductor/pattern_matcher.py: PatternMatcherPass.patterns.
    from torch._inductor import decomposition, lowering
    from torch._inductor.fx_passes import post_grad

    from compilefarm.graph import replacements

    assert {entry.count("/") for entry in torch.library._impls} == {2}
    assert replacements._meta_kernels() <= torch.library._impls
    assert len(replacements._meta_kernels()) > 500
    assert {"post_autograd", "pre_autograd", "meta"} == torch._decomp.global_decomposition_table.keys()
    assert torch.ops.aten.add.Tensor in lowering.lowerings
    assert torch.ops.aten.gelu_backward.default in decomposition.decompositions
    assert any(replacements._patterns(post_grad))


def test_what_schemas_say_of_writes() -> None:
    # torch/csrc/jit/python/init.cpp: FunctionSchema.is_mutable, Argument.alias_info.is_write.
    schema = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default._schema
    written = [given.name for given in schema.arguments if given.alias_info is not None and given.alias_info.is_write]
    assert (schema.is_mutable, written) == (True, ["self", "found_inf"])
    assert (torch.ops.aten.add.Tensor._schema.is_mutable, schema.name) == (
        False,
        "aten::_amp_foreach_non_finite_check_and_unscale_",
    )


def test_tensors_that_stay_where_they_are() -> None:
    # torch/_dynamo/decorators.py: mark_static_address, which Dynamo calls for the state of an optimizer.
    tensor = torch.ones(2)
    assert not tracing.is_static(tensor)
    torch._dynamo.mark_static_address(tensor)
    assert tracing.is_static(tensor)


def test_operators_that_inductor_registers() -> None:
    # torch/_inductor/inductor_prims.py: Dynamo writes them for optimizers.
    assert "prims::fma" in operators.operators_of_torch()


def test_launches_of_triton_kernels() -> None:
    # torch/_higher_order_ops/triton_kernel_wrap.py: a higher-order operator and a table for the process.
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation

    assert triton_kernel_wrapper_mutation.name() == "triton_kernel_wrapper_mutation"
    constants = {"count": 3}
    assert kernel_side_table.get_constant_args(kernel_side_table.add_constant_args(constants)) == constants


def test_what_triton_keeps_of_a_kernel() -> None:
    # triton/runtime/jit.py and triton/runtime/autotuner.py: what graph/triton_kernels.py reads.
    from compilefarm.graph.triton_kernels import _CONFIGURED

    triton = pytest.importorskip("triton")
    kernel = triton.jit(_no_kernel, do_not_specialize=["x"], noinline=True)
    assert kernel.src.startswith("def _no_kernel(x: int")
    assert (kernel.pre_run_hooks, kernel.noinline, kernel.fn) == ([], True, _no_kernel)
    assert [given.do_not_specialize for given in kernel.params] == [True, False]
    assert [given.do_not_specialize_on_alignment for given in kernel.params] == [False, False]
    tuner = triton.autotune([triton.Config({"x": 1})], key=["y"])(kernel)
    assert (tuner.fn, tuner.base_fn, tuner.keys, tuner.restore_value) == (kernel, _no_kernel, ["y"], [])
    assert (tuner.user_defined_pre_hook, tuner.user_defined_post_hook) == (False, False)
    assert (tuner.perf_model, tuner.early_config_prune) == (None, None)
    assert {"kwargs", *_CONFIGURED} <= vars(tuner.configs[0]).keys()


def _no_kernel(x: int, y: int) -> None:
    """Triton reads its source."""


def test_storages_keep_their_python_object() -> None:
    # torch/csrc/StorageMethods.cpp: what tells inputs that share memory.
    tensor = torch.ones(4)
    assert tensor.untyped_storage() is tensor[1:].untyped_storage()


def test_settings_and_their_defaults() -> None:
    # torch/utils/_config_module.py: ConfigModule._config, its entries' default, and get_config_copy().
    for config, name, default in (
        (torch._inductor.config, "max_autotune", False),
        (torch._inductor.config, "triton.cudagraphs", False),
        (torch._functorch.config, "activation_memory_budget", 1.0),
    ):
        assert settings.defaults(config)[name] == default
        assert settings.values(config)[name] == default
        with config.patch({name: "changed"}):
            assert settings.values(config)[name] == "changed"
            assert settings.defaults(config)[name] == default


def test_every_setting_has_a_default() -> None:
    for config in (torch._inductor.config, torch._functorch.config):
        assert settings.values(config).keys() <= settings.defaults(config).keys()


TABLES = ((torch._inductor.config, INDUCTOR), (torch._functorch.config, FUNCTORCH))
# What torch 2.11 has and 2.15 has not.
_EARLIER_SETTINGS = {
    "always_complex_memory_overlap_TESTING_ONLY", "autoheuristic_collect", "autoheuristic_use", "force_same_precision",
    "partitioned_scatter_memory_budget", "triton.enable_tlx_templates",
}  # fmt: skip


def test_somebody_has_decided_what_becomes_of_every_setting() -> None:
    # To mend: core/inductor_settings.py, core/functorch_settings.py. What puts a text into source is never allowed.
    for config, table in TABLES:
        assert [name for name in settings.defaults(config) if not table.is_classified(name)] == []
        assert not table.allowed.keys() & (table.refused.keys() | table.without_effect.keys())
        assert not table.refused.keys() & table.without_effect.keys()


@pytest.mark.skipif(not _IS_NEWEST, reason="releases before the newest lack later settings")
def test_every_setting_that_is_listed_exists() -> None:
    for config, table in TABLES:
        listed = {*table.allowed, *table.without_effect, *(name for name in table.refused if name[-1] != ".")}
        assert listed - settings.defaults(config).keys() <= _EARLIER_SETTINGS


def test_settings_still_have_the_type_that_is_listed() -> None:
    for config, table in TABLES:
        defaults = settings.defaults(config)
        for name in table.allowed.keys() & defaults.keys():
            # torch/utils/_config_module.py: _ConfigEntry.alias; an alias has no default of its own.
            assert config._config[name].alias or table.allowed[name].admits(defaults[name]), name


@pytest.mark.skipif(not _IS_NEWEST, reason="releases before the newest lack later words")
def test_words_of_settings_are_those_that_torch_names() -> None:
    for config, table in TABLES:
        for name, allowed in table.allowed.items():
            if isinstance(allowed, Word) and name in config._config:
                named = typing.get_args(config._config[name].value_type)
                assert not named or allowed.words <= set(named), name


def test_tables_are_quick_to_make_where_dynamo_is_at_work() -> None:
    program = (
        "import time, torch, torch._dynamo.trace_rules\n"
        "from compilefarm.graph import targets\n"
        "started = time.perf_counter()\n"
        "targets.name_target(torch.conv2d), targets._tensor_methods(), targets.name_target(torch.ops.aten.relu)\n"
        "print(time.perf_counter() - started)"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    # 20 to 40 ms on an idle machine; the best of three keeps a busy one from failing this.
    assert min(seconds) < 0.25


def test_refusal_takes_no_time() -> None:
    started = time.perf_counter()
    for number in range(1000):
        try:
            targets.get_target(targets.OPERATOR_OVERLOAD, name=f"nowhere{number}::nothing")
        except InvalidRequest:
            continue
        raise AssertionError(number)
    assert time.perf_counter() - started < 5


def test_fake_tensors_can_be_left_for_a_while() -> None:
    with tracing.faking():
        assert isinstance(torch.ones(2), FakeTensor)
        with tracing.not_faking():
            assert torch.ones(2).tolist() == [1.0, 1.0]
        assert isinstance(torch.ones(2), FakeTensor)


# Where Dynamo has them elsewhere in older releases: under torch._C, which is listed as well.
_LATER_MODES = {
    f"torch._functorch.predispatch.{name}"
    for name in (
        "_enter_dual_level", "_exit_dual_level", "_jvp_decrement_nesting", "_jvp_increment_nesting", "_make_dual",
        "_unpack_dual", "_unwrap_for_grad",
    )
}  # fmt: skip


def test_what_enters_and_leaves_modes() -> None:
    # A name that a release lacks is left out without a word, and graphs that hold it are compiled locally.
    functions = targets._torch_functions()
    assert set(targets._MODES) - functions.keys() <= (set() if _IS_NEWEST else _LATER_MODES)


def test_indices_in_bodies_of_flexible_attention() -> None:
    # graph/bodies.py
    table, place = torch.arange(3.0), torch.tensor(2)
    with bodies.TransformGetItemToIndex(), FakeTensorMode(allow_non_fake_inputs=True):
        assert table[place].shape == ()


def test_operators_that_call_subgraphs() -> None:
    # torch._ops._higher_order_ops, filled by torch/_higher_order_ops.
    for name in targets._HIGHER_ORDER:
        assert targets.get_target(targets.HIGHER_ORDER_OPERATOR, name=name).name() == name


def test_symbols_are_made_as_dynamo_makes_them() -> None:
    # What graph/symbols.py uses of torch/fx/experimental/symbolic_shapes.py, sym_node.py and torch/_dynamo/source.py.
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shapes, source = ShapeEnv(), ConstantSource("s")
    symbol = shapes.create_symbol(8, source, dynamic_dim=DimDynamic.DYNAMIC)
    number = shapes.create_symintnode(symbol, hint=8, source=source)
    assert isinstance(number.node, SymNode)
    assert number.node.expr == symbol
    assert shapes.bound_sympy(symbol).lower >= 0


def test_what_tells_that_floats_became_tensors() -> None:
    # torch/_dynamo/symbolic_convert.py, torch/_dynamo/exc.py and torch/_guards.py, for graph/tracing.py.
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState
    from torch._guards import CompileContext, TracingContext

    assert issubclass(TensorifyScalarRestartAnalysis, Exception)
    assert callable(TensorifyState.should_specialize)
    assert CompileContext.current_compile_id() is None
    assert TracingContext.try_get() is None


def test_schemas_tell_dtypes_from_numbers() -> None:
    # torch/_ops.py: OpOverload._schema; its arguments' types are those of TorchScript, the real ones those of ATen.
    schema = torch.ops.aten.to.dtype._schema
    assert [str(argument.real_type) for argument in schema.arguments][:2] == ["Tensor", "ScalarType"]
    assert {overload.name() for overload in operators.overloads_of(torch.ops.aten.relu)} == {
        "aten::relu",
        "aten::relu.out",
    }
    # TorchScript alone adds texts.
    assert "str" in torch.ops.aten.add.overloads()
    assert "aten::add.str" not in {overload.name() for overload in operators.overloads_of(torch.ops.aten.add)}


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
