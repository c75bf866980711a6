"""Chooses elements of synthetic inputs by the operators that consume them.

A graph says nothing of the elements that it expects. Yet what looks up rows of a table takes integers below their
number, what divides by an input takes no zero, and what writes to chosen places gives one result only where no two of
them are the same. Inputs are followed through views and casts to what consumes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compilefarm.graph.symbols import find_hint
from compilefarm.graph.targets import nodes_of
from compilefarm.torch_internals.operators import OpOverload, schema_of


class Kind(Enum):
    """A kind of elements.

    Attributes:
        INDEX: integers below a number.
        PLACES: the same, each of them once in as many of the last dimensions as there are enough for.
        OFFSETS: integers from zero up to a number, in order.
        SPLITS: the same, and the last one is the number, so that each integer below it lies between two of them.
        COUNT: the number itself.
        SHARES: integers whose sum is the number.
        CHOICES: booleans, of which at most the number are true once they are expanded to all places.
        COUNTING: 0, 1, 2, ... along the last dimension.
        PIVOTS: 1, 2, 3, ... along the last dimension: each row stays where it is.
        DIVISOR: no zeros, nor nearly zero.
        POSITIVE: larger than zero.
        PROBABILITY: between zero and one, and neither of these.
        ORDERED: not smaller than the one before.
        DEFINITE: matrices that are symmetric and positive definite.
        REGIONS: rows of five: the number of an image, below a number, and two corners of a box in it.
        WEIGHTS: numbers of either sign, over the root of a number: how many of them are added up.
    """

    INDEX = auto()
    PLACES = auto()
    OFFSETS = auto()
    SPLITS = auto()
    COUNT = auto()
    SHARES = auto()
    CHOICES = auto()
    COUNTING = auto()
    PIVOTS = auto()
    DIVISOR = auto()
    POSITIVE = auto()
    PROBABILITY = auto()
    ORDERED = auto()
    DEFINITE = auto()
    REGIONS = auto()
    WEIGHTS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """The elements that an input has to have.

    Attributes:
        kind: see there.
        bound: the number, for kinds that have one.
        size: what the number is where sizes differ from call to call, if it has to be that very size.
        extent: largest coordinate, of boxes.
        places: of choices, how many there are after all expanding.
    """

    kind: Kind
    bound: int = 0
    size: int | torch.SymInt | None = None
    extent: float = 1.0
    places: int = 1


Found = Iterable[tuple[object, Filler]]

# Their elements depend on each other, and are not such that any other ones below a bound would do.
_EXACT = (Kind.COUNT, Kind.SHARES, Kind.COUNTING, Kind.OFFSETS, Kind.SPLITS)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What has the elements of its first argument, or some of them.
_CARRIERS = _names("""
    alias bfloat16 bool chunk clamp clamp_max clamp_min clone contiguous cpu cuda detach double expand expand_as flatten
    float getitem half int lift_fresh_copy long masked_fill movedim narrow permute repeat reshape select slice split
    squeeze swapaxes t to _to_copy transpose type type_as unbind unflatten unsqueeze view view_as
""")
_DIVIDING = _names("div divide true_divide truediv floor_divide floordiv remainder mod fmod itruediv ifloordiv imod")
_POSITIVE = _names("log log2 log10 sqrt rsqrt multinomial lgamma digamma")
_PROBABLE = _names("bernoulli binary_cross_entropy logit erfinv atanh asin acos arcsin arccos arctanh")
_DEFINITE = _names("cholesky cholesky_ex linalg_cholesky linalg_cholesky_ex")
# Their index is the third argument, after a dimension of the first.
_READING = _names("gather index_select")
_WRITING = _names("scatter scatter_add scatter_reduce index_copy index_add index_fill index_reduce")
_SUBSCRIPTS_READ = _names("getitem index _unsafe_index")
_SUBSCRIPTS_WRITTEN = _names("setitem index_put _index_put_impl _unsafe_index_put")
# Of elements; those of sizes hold by now.
_ASSERTIONS = _names("_assert_async _functional_assert_async")
_CONVOLUTIONS = _names("""
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
""")
_LABELS = _names("cross_entropy nll_loss nll_loss_nd nll_loss2d nll_loss_forward multi_margin_loss")


def find_fillers(graph_module: GraphModule) -> Mapping[int, Filler]:
    """Returns what is known of the elements of inputs, by number of the input.

    Args:
        graph_module: a decoded graph, whose nodes have meta["example_value"].
    """
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    # The least bound is that of what takes fewest.
    found = {number: sorted(_followed(node), key=_strictness) for number, node in enumerate(inputs)}
    return {number: fillers[0] for number, fillers in found.items() if fillers}


def takes_zeros(graph_module: GraphModule) -> bool:
    """Whether a graph may be run on integers that are all zero, and on masks without an element, as far as is known:
    rows of a batch that all end where they begin hold no element, and what looks for the row of one comes to a row
    behind the last. What a graph asserts of its inputs may be anything.

    Args:
        graph_module: as for find_fillers.
    """
    asserts = any(_name(node) in _ASSERTIONS for node in nodes_of(graph_module))
    return not asserts and all(filler.kind is not Kind.SPLITS for filler in find_fillers(graph_module).values())


def _strictness(filler: Filler) -> tuple[bool, int, int]:
    # Two that take an index and one that writes by it: each of them once, below the smaller bound.
    return filler.kind not in _EXACT, filler.bound, -filler.kind.value


def _followed(node: Node) -> Iterator[Filler]:
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        for user in each.users:
            yield from (filler for argument, filler in _consumed(user) if argument is each)
            if user not in seen and _name(user) in _CARRIERS and user.args and user.args[0] is each:
                seen.add(user)
                waiting.append(user)


def _name(node: Node) -> str:
    """Returns the name of what a node calls, for functions, methods and operators, in place or not."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if isinstance(node.target, OpOverload):
        name = schema_of(node.target).name.partition("::")[2]
    return name if name.startswith("__") else name.removesuffix("_")


def _consumed(node: Node) -> Found:
    """Arguments of a node with what they have to be."""
    name = _name(node)
    if node.op not in ("call_function", "call_method"):
        return []
    if name in _DIVIDING:
        return [(argument, Filler(kind=Kind.DIVISOR)) for argument in node.args[1:] if isinstance(argument, Node)]
    if name in _POSITIVE:
        return [(node.args[0], Filler(kind=Kind.POSITIVE))] if node.args else []
    if name in _PROBABLE:
        return [(argument, Filler(kind=Kind.PROBABILITY)) for argument in _operands(node)]
    if name in _DEFINITE:
        return [(argument, Filler(kind=Kind.DEFINITE)) for argument in _operands(node)]
    if name in _READING or name in _WRITING:
        return _along_dimension(node, kind=Kind.INDEX if name in _READING else Kind.PLACES)
    if name in _SUBSCRIPTS_READ or name in _SUBSCRIPTS_WRITTEN:
        return _subscripts(node, kind=Kind.INDEX if name in _SUBSCRIPTS_READ else Kind.PLACES)
    consumer = _CONSUMERS.get(name)
    return consumer(node) if consumer is not None else []


def _operands(node: Node) -> list[Node]:
    return [each for each in (*node.args, *node.kwargs.values()) if isinstance(each, Node)]


def _argument(node: Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _tensor(node: object) -> torch.Tensor | None:
    """What a node gives where the graph runs on fake tensors; None if that is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _shape(node: object) -> list[int]:
    value = _tensor(node)
    return [find_hint(size) or 0 for size in value.shape] if value is not None else []


def _size(node: object) -> int | torch.SymInt | None:
    """How many elements a tensor of one dimension has."""
    value = _tensor(node)
    return value.shape[0] if value is not None and value.dim() == 1 else None


def _is_integral(node: object) -> bool:
    value = _tensor(node)
    return value is not None and not (value.is_floating_point() or value.is_complex())


def _along_dimension(node: Node, *, kind: Kind) -> Found:
    dimension, index = _argument(node, 1, "dim"), _argument(node, 2, "index")
    shape = _shape(node.args[0]) if node.args else []
    if isinstance(dimension, int) and -len(shape) <= dimension < len(shape):
        yield index, Filler(kind=kind, bound=shape[dimension])


def _subscripts(node: Node, *, kind: Kind) -> Found:
    if len(node.args) < 2 or not _shape(node.args[0]):
        return
    subscript, shape = node.args[1], _shape(node.args[0])
    places: Sequence[Any] = subscript if isinstance(subscript, list | tuple) else [subscript]
    taken = sum(1 for place in places if place is not None and place is not ...)
    # The operator says None where it takes all of a dimension, where Python says it for a new one.
    is_operator = isinstance(node.target, OpOverload)
    dimension = 0
    for place in places:
        if place is ...:
            dimension += len(shape) - taken
        elif place is not None or is_operator:
            if _is_integral(place) and dimension < len(shape):
                yield place, Filler(kind=kind, bound=shape[dimension])
            dimension += 1


def _table(node: Node) -> Found:
    """torch.nn.functional.embedding has the indices first, the operator the table."""
    first, second = _argument(node, 0, "input"), _argument(node, 1, "weight")
    indices, table = (first, second) if _is_integral(first) else (second, first)
    if shape := _shape(table):
        yield indices, Filler(kind=Kind.INDEX, bound=shape[0])
    if indices_shape := _shape(indices):
        yield _argument(node, 2, "offsets"), Filler(kind=Kind.OFFSETS, bound=indices_shape[0])


def _labels(node: Node) -> Found:
    shape, target = _shape(_argument(node, 0, "input")), _argument(node, 1, "target")
    if _is_integral(target) and shape:
        yield target, Filler(kind=Kind.INDEX, bound=shape[1] if len(shape) > 1 else shape[0])
    else:
        yield target, Filler(kind=Kind.PROBABILITY)


def _classes(node: Node) -> Found:
    number = _argument(node, 1, "num_classes")
    if isinstance(number, int) and number > 0:
        yield node.args[0], Filler(kind=Kind.INDEX, bound=number)


def _taken(node: Node) -> Found:
    shape, index = _shape(node.args[0]), _argument(node, 1, "index")
    bound = 1
    for size in shape:
        bound *= size
    yield index, Filler(kind=Kind.INDEX, bound=bound)


def _taken_along(node: Node) -> Found:
    shape, index, dimension = _shape(node.args[0]), _argument(node, 1, "indices"), _argument(node, 2, "dim")
    if isinstance(dimension, int) and shape:
        yield index, Filler(kind=Kind.INDEX, bound=shape[dimension])


def _powers(node: Node) -> Found:
    """A base that is negative has no power that is no integer."""
    if not isinstance(_argument(node, 1, "exponent"), int):
        yield node.args[0], Filler(kind=Kind.POSITIVE)


def _boundaries(node: Node) -> Found:
    first, second = _argument(node, 0, "sorted_sequence"), _argument(node, 1, "boundaries")
    edges, values = (first, second) if _name(node) == "searchsorted" else (second, first)
    # Which row of a batch each place belongs to, of rows that differ in length: that number is an index.
    if _is_integral(edges) and isinstance(values, Node) and _name(values) == "arange":
        yield edges, Filler(kind=Kind.SPLITS, bound=math.prod(_shape(values)), size=_size(values))
    else:
        yield edges, Filler(kind=Kind.ORDERED)


def _regions(node: Node) -> Found:
    """Of torchvision's poolings of regions: images, regions in them, and a scale from these to the pixels."""
    shape, scale = _shape(_argument(node, 0, "input")), _argument(node, 2, "spatial_scale")
    if len(shape) == 4:
        factor = scale if isinstance(scale, int | float) and scale > 0 else 1.0
        yield _argument(node, 1, "rois"), Filler(kind=Kind.REGIONS, bound=shape[0], extent=min(shape[2:]) / factor)


def _groups(node: Node) -> Found:
    shape = _shape(node.args[0])
    yield _argument(node, 2, "offs"), Filler(kind=Kind.OFFSETS, bound=shape[0] if shape else 0)


def _repeats(node: Node) -> Found:
    """How often each element is repeated: the result has as many as these are together. With none, nothing would be
    compared, and kernels of torch 2.11 divide by zero (runtime/triton_heuristics.py: Grid2DWithYZOverflow)."""
    # Alone they are the first argument.
    second = _argument(node, 1, "repeats")
    repeats = _argument(node, 0, "repeats") if second is None else second
    size = node.kwargs.get("output_size")
    known = size.meta.get("example_value") if isinstance(size, Node) else size
    hint = find_hint(known) if isinstance(known, int | torch.SymInt) else None
    if hint is not None and _is_integral(repeats):
        yield repeats, Filler(kind=Kind.SHARES, bound=hint, size=known)
    elif _is_integral(repeats):
        # Whatever counts them beforehand, counts these.
        yield repeats, Filler(kind=Kind.POSITIVE)


def _chosen(node: Node) -> Found:
    """Each element that is chosen takes the next one of a source. Where that has enough for all, any mask will do."""
    source, places = math.prod(_shape(_argument(node, 2, "source"))), math.prod(_shape(node))
    if source < places:
        yield _argument(node, 1, "mask"), Filler(kind=Kind.CHOICES, bound=source, places=places)


def _unpooled(node: Node) -> Found:
    """Indices say where in a plane, or in a volume, each value goes."""
    dimensions = int(_name(node).removeprefix("max_unpool").removesuffix("d"))
    bound = math.prod(_shape(node)[-dimensions:])
    yield _argument(node, 1, "indices"), Filler(kind=Kind.PLACES, bound=bound)


def _kernels(node: Node) -> Found:
    """Of convolutions: what is added up for an element of the result is as many elements as a kernel has, in all the
    channels of its group. Where a deep network has no norms, its activations would grow beyond all floats otherwise.
    A transposed one that does not say its groups has as many channels before as after, for this.
    """
    weight = _argument(node, 1, "weight")
    if _name(node).endswith("convolution"):
        transposed, groups = _argument(node, 6, "transposed"), _argument(node, 8, "groups")
    else:
        transposed, groups = _name(node).startswith("conv_transpose"), _argument(node, 6, "groups")
    shape = _shape(weight)
    if len(shape) < 3 or 0 in shape:
        return
    added_up = math.prod(shape[1:])
    if transposed is True and isinstance(groups, int) and groups > 0:
        added_up = math.prod((shape[0] // groups, *shape[2:]))
    yield weight, Filler(kind=Kind.WEIGHTS, bound=max(added_up, 1))


def _variance(node: Node) -> Found:
    name = _name(node)
    yield _argument(node, 4 if name != "batch_norm" else 2, "running_var"), Filler(kind=Kind.POSITIVE)


def _blocks(node: Node) -> Found:
    """Of torch's flexible attention: which blocks a mask leaves. All, so that the mask itself decides, as in eager.

    torch/nn/attention/flex_attention.py: BlockMask.as_tuple
    """
    mask = _argument(node, 4, "block_mask")
    if not isinstance(mask, list | tuple) or len(mask) < 10:
        return
    for first in (2, 6):
        counts, indices, full_counts, full_indices = mask[first : first + 4]
        yield counts, Filler(kind=Kind.COUNT, bound=(_shape(indices) or [0])[-1])
        yield full_counts, Filler(kind=Kind.COUNT, bound=0)
        yield from ((each, Filler(kind=Kind.COUNTING)) for each in (indices, full_indices))


_CONSUMERS: Mapping[str, Callable[[Node], Found]] = {
    "embedding": _table,
    "embedding_bag": _table,
    "one_hot": _classes,
    "take": _taken,
    "take_along_dim": _taken_along,
    "pow": _powers,
    "bucketize": _boundaries,
    "searchsorted": _boundaries,
    "_grouped_mm": _groups,
    "grouped_mm": _groups,
    "batch_norm": _variance,
    "repeat_interleave": _repeats,
    "masked_scatter": _chosen,
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
    "flex_attention": _blocks,
    **dict.fromkeys(("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"), _regions),
    **dict.fromkeys(_LABELS, _labels),
    **dict.fromkeys(_CONVOLUTIONS, _kernels),
}
