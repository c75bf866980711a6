"""Graphs that write to what they are given, or hold, leave the same tensors behind there and back as in the pod."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.fx import Graph, GraphModule

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import capture, fixed_environment, trace
from compilefarm.graph.writes import arguments_written
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operators import registered_names
from compilefarm.torch_internals.pytrees import map_tensors, tensors_in
from tests.corpus.codec import CodecBackend

aten = torch.ops.aten
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_


def _encoded(graph_module: GraphModule, inputs: Sequence[Any]) -> EncodedJob:
    return encode_job(graph_module, inputs, options={}, environment=fixed_environment)


def _there_and_back(graph_module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend of torch.compile: what a worker makes of the graph, run as it is."""
    encoded = _encoded(graph_module, inputs)
    decoded = decode_job(encoded.job, blobs=encoded.blobs).graph_module
    return lambda *given: decoded(*given, *encoded.held)


def _calling(
    target: Any, *args: Any, held: Sequence[torch.Tensor] = (), **kwargs: Any
) -> tuple[GraphModule, list[Any]]:
    """A graph that calls a target, and its inputs: the tensors among the arguments, but for those that it holds."""
    graph, root, inputs = Graph(), torch.nn.Module(), []

    def node_of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(node_of, value))
        if not isinstance(value, torch.Tensor):
            return value
        if any(value is tensor for tensor in held):
            name = f"held_{len(root._buffers)}"
            root.register_buffer(name, value)
            return graph.get_attr(name)
        inputs.append(value)
        return graph.placeholder(f"input_{len(inputs)}")

    # Placeholders come first, whatever order the arguments have.
    made = node_of(args), {name: node_of(value) for name, value in kwargs.items()}
    graph.call_function(target, *made)
    graph.output(())
    return GraphModule(root, graph), inputs


def _decoded(encoded: EncodedJob) -> DecodedJob:
    return decode_job(encoded.job, blobs=encoded.blobs)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return tensors_in(values)


def _assert_same_effect(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Calls a target by itself, in a graph that is given its tensors, and in one that holds them. Returns how many it
    changed.
    """
    before, expected = list(_tensors((args, kwargs))), copy.deepcopy((args, kwargs))
    target(*expected[0], **expected[1])
    changed = 0
    for holds in (False, True):
        given = copy.deepcopy((args, kwargs))
        tensors = list(_tensors(given))
        graph_module, inputs = _calling(target, *given[0], held=tensors if holds else (), **given[1])
        encoded = _encoded(graph_module, inputs)
        decoded = _decoded(encoded)
        decoded.graph_module(*inputs, *encoded.held)
        for old, ours, theirs in zip(before, tensors, _tensors(expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
            changed += not torch.equal(torch.nan_to_num(old), torch.nan_to_num(theirs))
    return changed


@pytest.mark.parametrize(
    ("overload", "args", "kwargs", "expected"),
    [
        (aten.add.Tensor, ("x", "y"), {}, []),
        (aten.add_.Tensor, ("x", "y"), {}, ["x"]),
        (aten.add.out, ("x", "y"), {"out": "z"}, ["z"]),
        (aten.sort.values, ("x",), {"values": "y", "indices": "z"}, ["y", "z"]),
        (aten._foreach_mul.Scalar, (["x"], 2.0), {}, []),
        (aten._foreach_mul_.Scalar, (["x", "y"], 2.0), {}, [["x", "y"]]),
        (aten._foreach_add.Scalar_out, (["x"], 1.0), {"out": ["y"]}, [["y"]]),
        (aten._amp_foreach_non_finite_check_and_unscale_.default, (["x"], "y", "z"), {}, [["x"], "y"]),
        (aten._native_batch_norm_legit.default, ("x", None, None, "mean", "var", True, 0.1, 0.0), {}, ["mean", "var"]),
        # Its schema does not say so.
        (aten.native_batch_norm.default, ("x", None, None, "mean", "var", True, 0.1, 0.0), {}, ["mean", "var"]),
        (aten.native_batch_norm.default, ("x", None, None, "mean", "var", False, 0.1, 0.0), {}, []),
    ],
)
def test_what_an_operator_writes_is_in_its_schema(
    overload: Any, args: Sequence[Any], kwargs: dict[str, Any], expected: list[Any]
) -> None:
    assert list(arguments_written(overload._schema, args, kwargs)) == expected


# Calls of operators, by themselves and in graphs


def _floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """Between -2 and 2."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 4 - 2


def _overload(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, base), overload or "default")


FOREACH = [
    name
    for name in sorted(registered_names())
    if name.startswith("aten::_foreach_") and not name.endswith("out") and _overload(name)._schema.is_mutable
]


def _argument(declared: Any, *, seed: int) -> Any:
    match str(declared.type):
        case "List[Tensor]":
            return [_floats(3, seed=seed), _floats(2, 2, seed=seed + 1)]
        case "Tensor":
            # Scalars of a list, or one scalar.
            return _floats(2, seed=seed) if declared.name == "scalars" else _floats(seed=seed)
        case "List[number]":
            return [0.5, 0.75]
        case "number":
            return 0.5
    raise AssertionError(f"no argument of type {declared.type}")


@pytest.mark.parametrize("name", FOREACH)
def test_operators_on_lists(name: str) -> None:
    schema = _overload(name)._schema
    args = [
        _argument(declared, seed=10 * position)
        for position, declared in enumerate(schema.arguments)
        if not declared.has_default_value()
    ]
    if not _runs_without_elements(_overload(name), args):
        pytest.skip(f"torch {torch.__version__} cannot run {name} on fake tensors")
    assert _assert_same_effect(_overload(name), args, {})


def _runs_without_elements(overload: Any, args: Sequence[Any]) -> bool:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = map_tensors(mode.from_tensor, args)
        try:
            overload(*fake)
        except RuntimeError:
            return False
    return True


def _state(count: int = 2) -> list[torch.Tensor]:
    return [torch.ones(3) / (number + 1) for number in range(count)]


_ADAM = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": True, "maximize": False}
_SGD = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": True, "maximize": False}


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize(
    ("target", "lists", "options"),
    [
        (aten._fused_adam_, 6, _ADAM),
        (aten._fused_adamw_, 6, _ADAM),
        (aten._fused_adagrad_, 4, {"lr_decay": 0.1, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}),
        (aten._fused_sgd_, 3, _SGD | {"is_first_step": False}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fused_optimizers(target: Any, lists: int, options: dict[str, Any], rate: Any) -> None:
    args = [_state() for _ in range(lists)]
    if "lr_decay" in options or "beta1" in options:
        args[-1] = [torch.tensor(3.0), torch.tensor(5.0)]
    unscaling = {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)}
    assert _assert_same_effect(target, args, {"lr": rate, **options, **unscaling})


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (UNSCALE, ([_floats(3), torch.tensor([torch.inf])], torch.zeros(1), torch.ones(1) / 2), {}),
        (aten._amp_update_scale_, (torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1), 2.0, 0.5, 1), {}),
        (torch.add, (_floats(3), 1.0), {"out": torch.zeros(3)}),
        (torch.sort, (_floats(3),), {"out": (torch.zeros(3), torch.zeros(3, dtype=torch.long))}),
        (aten._foreach_add.Scalar_out, (_state(), 1.0), {"out": _state()}),
        (aten.index_put_, (_floats(4), [torch.tensor([0, 2])], torch.zeros(2)), {}),
        (torch.nn.functional.batch_norm, (_floats(4, 3), torch.zeros(3), torch.ones(3)), {"training": True}),
        (torch.nn.functional.instance_norm, (_floats(2, 3, 4), torch.zeros(3), torch.ones(3)), {}),
        (torch.nn.functional.relu, (_floats(3),), {"inplace": True}),
        (torch.nn.functional.embedding, (torch.tensor([0, 1]), _floats(2, 3)), {"max_norm": 0.5}),
        (operator.setitem, (_floats(4), slice(1, 3), 0.0), {}),
        (aten.native_batch_norm, (_floats(4, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 0.0), {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_ways_to_write(target: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: Callable[[], Any]) -> None:
    with mode():
        assert _assert_same_effect(target, args, kwargs)


# Graphs that Dynamo makes


def _set_column(x: torch.Tensor) -> None:
    x[:, 1] = 0.0


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "slice": lambda x: x[1:].add_(1),
    "transposed": lambda x: x.t().mul_(2),
    "reshaped": lambda x: x.view(-1).zero_(),
    "diagonal": lambda x: torch.diagonal(x).fill_(7),
    "real": lambda x: torch.view_as_complex(x.view(-1, 2)).mul_(2j),
    "detached": lambda x: x.detach().add_(1),
    "list of views": lambda x: torch._foreach_add_(list(x.unbind()), 1.0),
    "split": lambda x: torch._foreach_mul_(list(x.split(2)), [2.0, 3.0]),
    "set item": _set_column,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_counts_for_what_it_views(name: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        VIEWS[name](x)
        return x * 2

    ours, theirs = _floats(4, 4), _floats(4, 4)
    expected = program(theirs)
    encoded = capture(program, ours.clone()).encode()
    assert _decoded(encoded).written_inputs == {0}
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(program, backend=_there_and_back)(ours), expected)
    torch.testing.assert_close(ours, theirs)


def _conditionally(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sum()

    return torch.cond(x.sum() > 0, write, lambda x, y: x - y.sum(), (x, y))


def _checkpointed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def write(x: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return torch.nn.functional.relu(x * 2, inplace=True)

    return torch.utils.checkpoint.checkpoint(write, x, use_reentrant=False)


def _checkpointed_alone(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def read(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x * y, inplace=True)

    return torch.utils.checkpoint.checkpoint(read, x, use_reentrant=False)


def _invoked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    @torch.compiler.nested_compile_region
    def region(y: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([y], 1.0)
        return y * 2

    # The second time torch remembers what came of the first.
    return region(y.clone()) + region(y) + x


@pytest.mark.parametrize(
    ("program", "written"),
    [(_conditionally, set()), (_checkpointed, {1}), (_checkpointed_alone, set()), (_invoked, {0})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_subgraphs_that_write(program: Callable[..., Any], written: set[int]) -> None:
    # Not run before it is said: that leaves notes beside the nodes of a checkpointed subgraph.
    encoded = trace(program, torch.ones(3, requires_grad=program is not _invoked), torch.ones(3)).encode()
    assert _decoded(encoded).written_inputs == written


def test_inputs_that_share_memory_and_are_written_to_in_a_list() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._foreach_mul_([x], 3.0)
        return y * 2

    base = torch.ones(4)
    captured = capture(program, base, base[1:])
    with pytest.raises(Bypass) as caught:
        captured.encode()
    assert caught.value.reason == "aliased_inputs"


def test_a_constant_is_no_view_of_what_the_graph_writes_to() -> None:
    base = torch.ones(4)
    graph = Graph()
    x = graph.placeholder("x")
    view = graph.get_attr("view")
    graph.call_function(torch._foreach_mul_, ([x], 3.0))
    graph.output((graph.call_method("mul", (view, 2)),))
    with pytest.raises(Bypass) as caught:
        _encoded(GraphModule({"view": base[1:]}, graph), [base])
    assert caught.value.reason == "aliased_inputs"


# Optimizers

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
}


def _train(name: str, options: dict[str, Any], *, steps: int, backend: Any) -> None:
    torch.compiler.reset()
    parameters = [torch.nn.Parameter(_floats(3, 2)), torch.nn.Parameter(_floats(2, seed=1))]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    step = torch.compile(optimizer.step, backend=backend)
    for number in range(steps):
        for parameter in parameters:
            parameter.grad = _floats(*parameter.shape, seed=number)
        step()


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_train_as_in_the_pod(name: str, foreach: bool) -> None:
    options = {**OPTIMIZERS[name], "foreach": foreach}
    # Each step is held to that of the graph as it was captured, bit by bit: parameters and state are what it is given.
    backend = CodecBackend()
    _train(name, options, steps=3, backend=backend)
    assert {(report.outcome, *report.unfaithful) for report in backend.reports} == {("sent",)}


def test_what_a_schedule_changes_between_two_steps_is_read_anew() -> None:
    """State that a graph only reads is no constant either: others write to it."""

    def trained(backend: Any) -> torch.Tensor:
        torch.compiler.reset()
        scale, x = torch.tensor([2.0]), torch.ones(3)
        torch._dynamo.mark_static_address(scale)
        step = torch.compile(lambda x: x.mul_(scale), backend=backend)
        step(x)
        scale.fill_(3.0)
        return step(x)

    torch.testing.assert_close(trained(_there_and_back), trained("eager"))
    torch.testing.assert_close(trained("eager"), torch.full((3,), 6.0))
