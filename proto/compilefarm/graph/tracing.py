"""What a backend asks of Dynamo while Dynamo traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule

from compilefarm.graph.dynamic_floats import DecidingFloats
from compilefarm.torch_internals import dynamo
from compilefarm.torch_internals.dynamo import CompileContext, RestartWithConstants
from compilefarm.torch_internals.fake_tensors import FakeTensorMode, leaving_fake_mode
from compilefarm.torch_internals.symbolic_shapes import unreplaced_symbol


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
        number: of its placeholder.
        symbol: Dynamo's name for it.
        source: where the frame has it from, as in "L['self'].eps".
        value: what it is now.
    """

    number: int
    symbol: str
    source: str
    value: float


def are_watched(values: Sequence[torch.SymInt]) -> bool:
    """Whether Dynamo is tracing with these symbols, so that guards put on them now are checked before every call."""
    mode = dynamo.tracing_mode()
    return mode is not None and all(value.node.shape_env is mode.shape_env for value in values)


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
    with leaving_fake_mode():
        yield


@contextmanager
def fixing_floats(graph_module: GraphModule) -> Iterator[None]:
    """Around what a backend does: has Dynamo trace the frame again with the floats of its graph as constants, which it
    then guards.

    With dynamic=True Dynamo takes every float of a model, such as the eps of a norm, for one that may differ, and yet
    decides things by it while it traces. Where a compile needs the value, torch does the same as is done here
    (torch/fx/passes/_tensorify_python_scalars.py). A float that did differ since is left alone, and so are all without
    dynamic=True, where Dynamo takes for such only those that differed.

    Raises:
        RestartWithConstants: Dynamo is to trace again; it expects this from a backend.
    """
    given_floats = [] if dynamo.expects_static() else list(_dynamic_floats(graph_module))
    frame = _current_frame() if given_floats else None
    floats = [
        given
        for given in given_floats
        if frame is not None and frame.fixed.setdefault(given.source, given.value) == given.value
    ]
    for given in floats:
        dynamo.make_float_constant(given.symbol)
    if floats:
        raise RestartWithConstants
    try:
        yield
    except RestartWithConstants:
        # Inductor asks for more, and would ask again for what Dynamo has forgotten.
        raise
    except BaseException:
        dynamo.forget_constant_floats()
        raise
    # Dynamo forgets them at other restarts only, and would make the same floats of other frames constants too.
    dynamo.forget_constant_floats()


@contextmanager
def fixing_deciding_floats(graph_module: GraphModule) -> Iterator[None]:
    """Around the encoding of a graph: where floats that differ from call to call decide something, has Dynamo trace
    the frame again with those as constants. Torch does the same with each of their values.

    Raises:
        RestartWithConstants: Dynamo is to trace again; it expects this from a backend.
        DecidingFloats: it is not known which floats, or Dynamo is not tracing.
    """
    try:
        yield
    except DecidingFloats as deciding:
        floats = [given for given in _dynamic_floats(graph_module) if given.number in deciding.inputs]
        if not floats or not dynamo.is_tracing():
            raise
        for given in floats:
            dynamo.make_float_constant(given.symbol)
        raise RestartWithConstants from deciding


def _current_frame() -> _Frame | None:
    compiling = dynamo.current_compile()
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
    for number, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        argument = node.meta.get("grapharg")
        if argument is None or not argument.pass_arg_as_tensor:
            continue
        memo = getattr(node.meta["example_value"], "item_memo", None)
        if isinstance(memo, torch.SymFloat) and all(user.target == "item" for user in node.users):
            # torch/_dynamo/output_graph.py: remove_tensorify_specialized_graphargs asks for the same.
            yield _DynamicFloat(
                number=number,
                symbol=unreplaced_symbol(memo),
                source=_name_of(argument.source),
                value=float(memo.node.hint),
            )


def _name_of(source: object) -> str:
    name = source.name  # type: ignore[attr-defined]  # torch._guards.Source
    return str(name() if callable(name) else name)
