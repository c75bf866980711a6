"""PyTorch's own samples for its operators: what they write, in place and to out=, is known of their graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import GraphRejected, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import fixed_environment
from compilefarm.graph.writes import arguments_written
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.torch_internals.pytrees import map_leaves, tensors_in
from tests.ends import shared_out
from tests.op_infos import foreach_operators, operators

# Operators that are deprecated say so.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Samples are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def op_infos() -> list[Any]:
    """Importing them takes longer than all tests here."""
    return [*operators(), *foreach_operators()]


def _sample(info: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """Arguments of a call, in float32 where the operator takes that."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype in info.dtypes:
            # Not by sample_inputs(), which looks through the stack for the test that asks: most of the time here.
            sample = next(iter(info.sample_inputs_func(info, "cpu", dtype, False)), None)
            return None if sample is None else ([sample.input, *sample.args], dict(sample.kwargs))
    return None


def _tensors(values: Any) -> list[torch.Tensor]:
    return list(tensors_in(values))


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor) if tensor.is_floating_point() or tensor.is_complex() else tensor


class _Unsaid(OperatorMode):
    """Notes operators that change what they do not say they write."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        said = {_place(tensor) for tensor in _tensors(list(arguments_written(func._schema, args, kwargs)))}
        others = [tensor for tensor in _tensors((args, kwargs)) if _place(tensor) not in said | {None}]
        before = [tensor.clone() for tensor in others]
        result = func(*args, **kwargs)
        self.seen.add(func.name())
        changed = (not torch.equal(_comparable(old), _comparable(new)) for old, new in zip(before, others, strict=True))
        if any(changed):
            self.found.add(func.name())
        return result


def _place(tensor: torch.Tensor) -> int | None:
    # Lazily conjugated and negated ones are written through tensors that are not.
    is_plain = tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()
    return tensor.untyped_storage().data_ptr() if is_plain else None


def test_no_operator_writes_what_it_does_not_say(op_infos: Sequence[Any]) -> None:
    unsaid = _Unsaid()
    torch.manual_seed(0)
    for info in op_infos:
        sample = _sample(info)
        if sample is None or info.name.startswith("jiterator"):
            continue
        args, kwargs = sample
        with unsaid:
            info.op(*args, **kwargs)
    assert len(unsaid.seen) > 500
    assert unsaid.found == set()


def _in_place(info: Any) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    variant, sample = info.inplace_variant, _sample(info)
    if hasattr(variant, "__name__") and sample is not None:
        yield variant, *sample


def _to_out(info: Any) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    sample = _sample(info) if info.supports_out and hasattr(info.op, "__name__") else None
    if sample is not None:
        args, kwargs = sample
        result = info.op(*args, **kwargs)
        results = _tensors(result)
        if results and len(results) == (len(result) if isinstance(result, list | tuple) else 1):
            out = map_leaves(torch.zeros_like, result)
            yield info.op, args, {**kwargs, "out": tuple(out) if isinstance(out, list | tuple) else out}


def _graph_of(target: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[GraphModule, list[torch.Tensor]]:
    graph, inputs = Graph(), []

    def node_of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(node_of, value))
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(value)
        return graph.placeholder(f"input_{len(inputs)}")

    made = node_of(tuple(args)), {name: node_of(value) for name, value in kwargs.items()}
    if isinstance(target, type(torch.Tensor.add_)):
        graph.call_method(target.__name__, *made)
    else:
        graph.call_function(target, *made)
    graph.output(())
    return GraphModule({}, graph), inputs


@pytest.mark.parametrize("variants", shared_out([_in_place, _to_out]))
def test_what_is_written_arrives(
    op_infos: Sequence[Any], variants: Callable[[Any], Iterator[tuple[Any, list[Any], dict[str, Any]]]]
) -> None:
    right, wrong = [], []
    for info in op_infos:
        # torch.manual_seed notes the stack for GPUs that it has not looked at: a tenth of the time here.
        torch.default_generator.manual_seed(0)
        for target, args, kwargs in variants(info):
            try:
                is_right = _writes_what_it_changes(target, args, kwargs)
            except (Bypass, GraphRejected, InvalidRequest):
                # It is not sent, or the farm refuses it: nothing is compiled.
                continue
            (right if is_right else wrong).append(info.name)
    assert wrong == []
    assert len(right) >= 120


def _writes_what_it_changes(target: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the inputs that a call changes are among those that the graph of it is said to write."""
    graph_module, inputs = _graph_of(target, args, kwargs)
    encoded = encode_job(graph_module, inputs, options={}, environment=fixed_environment)
    before = [tensor.clone() for tensor in inputs]
    written = decode_job(encoded.job, blobs={}).written_inputs
    graph_module(*inputs)
    changed = {
        number
        for number, (old, new) in enumerate(zip(before, inputs, strict=True))
        if old.shape != new.shape or not torch.equal(_comparable(old), _comparable(new))
    }
    return changed <= written
