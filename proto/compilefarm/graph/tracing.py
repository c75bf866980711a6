"""What a backend asks of Dynamo while Dynamo traces.

Beside `targets`, `symbols` and `settings` this module touches private names of torch; tests/graph/test_private_torch.py
says what broke when a release moves one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis  # torch/_dynamo/exc.py
from torch._dynamo.symbolic_convert import TensorifyState  # torch/_dynamo/symbolic_convert.py
from torch._guards import CompileContext, TracingContext  # torch/_guards.py
from torch._subclasses.fake_tensor import (  # torch/_subclasses/fake_tensor.py
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx import GraphModule


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What is remembered of a frame that Dynamo compiles.

    Attributes:
        first: its first compile that was seen, with all its attempts.
        fixed: what each float was when it was made part of a graph, by the name of its source.
    """

    first: CompileContext
    fixed: dict[str, float] = field(default_factory=dict)


# By the number of the frame, those with floats, the last ones. Dynamo counts them from 0 again after
# torch._dynamo.reset(). What is forgotten costs a float that did differ one more compile.
_frames: dict[object, _Frame] = {}
MOST_FRAMES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _DynamicFloat:
    """A Python float that Dynamo passes to a graph as a tensor because it may differ from call to call.

    Attributes:
        symbol: Dynamo's name for it.
        source: where the frame has it from, as in "L['self'].eps".
        value: what it is now.
    """

    symbol: str
    source: str
    value: float


def are_watched(values: Sequence[torch.SymInt]) -> bool:
    """Whether Dynamo is tracing with these symbols, so that guards put on them now are checked before every call."""
    context = TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    return mode is not None and all(value.node.shape_env is mode.shape_env for value in values)


def passes_state() -> bool:
    """Whether Dynamo is tracing, and makes what belongs to others inputs of its graphs: parameters, buffers, attributes
    and what closures hold. The tensors that such a graph still holds are Dynamo's own.
    """
    return TracingContext.try_get() is not None and _inlines_modules()


def _inlines_modules() -> bool:
    # torch/_dynamo/config.py. Releases in which it is always so warn of whoever asks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return bool(getattr(torch._dynamo.config, "inline_inbuilt_nn_modules", True))


def is_static(tensor: torch.Tensor) -> bool:
    """Whether Dynamo was told that a tensor stays where it is, so that graphs hold it: the state of an optimizer."""
    # torch/_dynamo/decorators.py: mark_static_address
    return getattr(tensor, "_dynamo_static_input_type", None) is not None


@contextmanager
def faking() -> Iterator[None]:
    """Tensors that are made inside have no elements, and lie on devices that this machine need not have.

    Dynamo takes such tensors. Models that are made inside cannot move themselves to another device.
    """
    with FakeTensorMode():
        yield


@contextmanager
def not_faking() -> Iterator[None]:
    """Leaves `faking` for a while."""
    with unset_fake_temporarily():
        yield


@contextmanager
def fixing_floats(graph_module: GraphModule) -> Iterator[None]:
    """Around what a backend does: has Dynamo trace the frame again with the floats of its graph as constants, which it
    then guards.

    With dynamic=True Dynamo takes every float of a model, such as the eps of a norm, for one that may differ, and yet
    decides things by it while it traces. Where a compile needs the value, torch does the same as is done here
    (torch/fx/passes/_tensorify_python_scalars.py). A float that did differ since is left alone.

    Raises:
        TensorifyScalarRestartAnalysis: Dynamo is to trace again; it expects this from a backend.
    """
    given_floats = list(_dynamic_floats(graph_module))
    frame = _current_frame() if given_floats else None
    floats = [
        given
        for given in given_floats
        if frame is not None and frame.fixed.setdefault(given.source, given.value) == given.value
    ]
    for given in floats:
        TensorifyState.specialize(given.symbol)
    if floats:
        raise TensorifyScalarRestartAnalysis
    try:
        yield
    except TensorifyScalarRestartAnalysis:
        # Inductor asks for more, and would ask again for what Dynamo has forgotten.
        raise
    except BaseException:
        TensorifyState.clear()
        raise
    # Dynamo forgets them at other restarts only, and would make the same floats of other frames constants too.
    TensorifyState.clear()


def _current_frame() -> _Frame | None:
    compiling = CompileContext.try_get()
    if compiling is None or compiling.compile_id is None:
        return None
    number, is_first = compiling.compile_id.frame_id, compiling.compile_id.frame_compile_id == 0
    known = _frames.get(number)
    if known is None or (is_first and known.first is not compiling):
        # The first compile of a number that is known already is that of another frame.
        _frames.pop(number, None)
        known = _frames[number] = _Frame(first=compiling)
        for oldest in list(_frames)[:-MOST_FRAMES]:
            _frames.pop(oldest, None)
    return known


def _dynamic_floats(graph_module: GraphModule) -> Iterator[_DynamicFloat]:
    for node in graph_module.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        if argument is None or not argument.pass_arg_as_tensor:
            continue
        memo = getattr(node.meta["example_value"], "item_memo", None)
        if isinstance(memo, torch.SymFloat) and all(user.target == "item" for user in node.users):
            # torch/_dynamo/output_graph.py: remove_tensorify_specialized_graphargs asks for the same.
            yield _DynamicFloat(
                symbol=memo.node._expr.name, source=_name_of(argument.source), value=float(memo.node.hint)
            )


def _name_of(source: object) -> str:
    name = source.name  # type: ignore[attr-defined]  # torch._guards.Source
    return str(name() if callable(name) else name)
