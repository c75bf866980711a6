"""Arguments of operators that contradict each other, and that torch believes: kernels then read past their tensors.

Functions that users call check such things, and the operators that they come down to do not check them again; a request
can call those itself. They are looked at before an operator runs on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from compilefarm.graph import attention, collectives
from compilefarm.graph.operators import named_arguments
from compilefarm.graph.tensors import MAX_DIMENSIONS
from compilefarm.torch_internals.fake_tensors import constants_of, is_dense
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode

Arguments = Mapping[str, Any]

_OF_CHANNELS = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd")
# Steps of fused optimizers, functional and in place.
OPTIMIZERS = frozenset(f"_fused_{name}{mark}" for name in ("adagrad", "adam", "adamw", "sgd") for mark in ("", "_"))
# Of bags of embeddings.
LAST_OFFSET = "its last offset says where its last bag ends, which is not held against its indices"
# Of polynomials that are evaluated step by step; 10,000 steps take 0.2 ms.
MOST_DEGREE = 10_000
_LEAST = -(2**63)
_NORMS = frozenset(
    {"_batch_norm_with_update", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
     "batch_norm_backward", "batch_norm_elemt", "batch_norm_gather_stats", "batch_norm_update_stats",
     "cudnn_batch_norm", "native_batch_norm", "native_batch_norm_backward"}
)  # fmt: skip


def find_misfit(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, lays_out: bool = False
) -> str | None:
    """Why an operator may not run with these arguments; None if it may.

    Args:
        operator: is about to be run.
        args: positional arguments, tensors among them fake.
        kwargs: named arguments.
        lays_out: whether Inductor runs it, which lays heads of attention out for it (attention.py).
    """
    name = schema_of(operator).name.partition("::")[2]
    find = _find_check(name, lays_out=lays_out)
    if find is None and name not in _WITHOUT_GAPS:
        return None
    given = named_arguments(schema_of(operator), args, kwargs)
    try:
        # Comparisons put guards on symbols, so that what was looked at here holds at every call.
        return _find_gaps(name, given) or (None if find is None else find(given))
    except GuardOnDataDependentSymNode:
        return "whether its arguments fit each other depends on elements"


def _find_gaps(name: str, given: Arguments) -> str | None:
    tensors = ((each, given.get(each)) for each in _WITHOUT_GAPS.get(name, ()))
    gaps = (each for each, tensor in tensors if isinstance(tensor, torch.Tensor) and not is_dense(tensor))
    return next((f"{each} has gaps, or elements that are the same memory" for each in gaps), None)


def _find_check(name: str, *, lays_out: bool) -> Callable[[Arguments], str | None] | None:
    if name in _NORMS:
        return _statistics_of_channels
    if name in _CHECKS:
        return _CHECKS[name]
    if name.startswith("_foreach_"):
        return _lists_side_by_side
    if name in OPTIMIZERS:
        return _lists_of_an_optimizer
    return attention.find_check(name, lays_out=lays_out) or collectives.find_check(name)


def find_contradiction(name: str, *, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Why an operator may not be called so in a graph, whatever its arguments turn out to be; None if it may.

    Args:
        name: of the operator, or of torch's function for it.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    if name.endswith("combinations"):
        return _find_excess_of_combinations(args, kwargs)
    if name.endswith("matrix_power"):
        # aten/src/ATen/native/LinearAlgebra.cpp takes it for a negative one, negates it, and begins again.
        exponent = args[1] if len(args) > 1 else kwargs.get("n")
        return f"it has no power {_LEAST}, which torch never comes to" if exponent == _LEAST else None
    if "upsample_" not in name:
        return None
    # torch/_decomp/decompositions.py: indices are computed with the scales alone, and not held against the input. Only
    # gradients have a size of the input after that of the output.
    later = args[3 if "backward" in name else 2 :]
    # The first says whether corners are aligned, but for the nearest. Torch takes a boolean for a scale, too.
    scales = [*later[0 if "nearest" in name else 1 :]]
    scales += [value for key, value in kwargs.items() if key.startswith("scale")]
    is_sized = (args[1] if len(args) > 1 else kwargs.get("output_size")) is not None
    is_scaled = any(scale is not None for scale in scales)
    return "it is given a size and scales, which may contradict each other" if is_sized and is_scaled else None


def may_contradict(name: str) -> bool:
    """Whether `find_contradiction` knows anything of what has this name."""
    return name.endswith(("combinations", "matrix_power")) or "upsample_" in name


def _find_excess_of_combinations(args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    # aten/src/ATen/native/Itertools.cpp makes a list of so many tensors, before any of them says that it has too many
    # dimensions.
    count = args[1] if len(args) > 1 else kwargs.get("r", 2)
    is_bounded = isinstance(count, int) and not isinstance(count, bool) and count <= MAX_DIMENSIONS
    return None if is_bounded else f"combinations are of at most {MAX_DIMENSIONS} elements each, said by a literal"


def _result_and_its_gradient(given: Arguments) -> str | None:
    gradient, output = tuple(given["grad_output"].shape), tuple(given["output"].shape)
    return None if gradient == output else f"its gradient is of {gradient} and its output of {output}"


def _batch_of_a_gradient(given: Arguments, *, spatial: int) -> str | None:
    # aten/src/ATen/native/AveragePool2d.cpp and the like hold the other sizes of a gradient against their input;
    # AdaptiveAveragePooling.cpp adds each element of a gradient somewhere, also where the input has none.
    gradient, values = given["grad_output"].shape, given["self"].shape
    is_alike = len(gradient) == len(values) and gradient[:-spatial] == values[:-spatial]
    if is_alike and (0 not in values or 0 in gradient):
        return None
    return f"its gradient is of {tuple(gradient)} and its input of {tuple(values)}"


def _statistics_of_channels(given: Arguments) -> str | None:
    if given["input"].dim() < 2:
        return "its input has no channels"
    channels = given["input"].shape[1]
    for name in _OF_CHANNELS:
        values = given.get(name)
        # Nothing is saved where the statistics are those of training.
        fitting = (channels, 0) if name.startswith("save_") else (channels,)
        if isinstance(values, torch.Tensor) and values.numel() not in fitting:
            return f"{name} has {values.numel()} elements for {channels} channels"
    return None


def _lengths_of_weights(given: Arguments) -> str | None:
    vectors, lengths, dimension = given["v"], given["g"], given.get("dim", 0)
    if dimension not in (0, vectors.dim() - 1):
        return f"its lengths are along dimension {dimension}, neither the first nor the last"
    if lengths.numel() != vectors.shape[dimension]:
        return f"{lengths.numel()} lengths for {vectors.shape[dimension]} vectors"
    return None


def _lists_side_by_side(given: Arguments) -> str | None:
    # Forms without a kernel of their own go through the others as far as the first reaches
    # (aten/src/ATen/native/ForeachUtils.h checks the others alone).
    lengths = {len(value) for value in given.values() if isinstance(value, list | tuple)}
    return f"its lists have {' and '.join(map(str, sorted(lengths)))} entries" if len(lengths) > 1 else None


def _lists_of_an_optimizer(given: Arguments) -> str | None:
    # What an optimizer keeps only under some of its options may be empty.
    lists = {name: value for name, value in given.items() if isinstance(value, list | tuple) and value}
    steps = lists.pop("state_steps", given["self"])
    lengths = {len(values) for values in (given["self"], given["grads"], steps, *lists.values())}
    if len(lengths) > 1:
        return f"its lists have {' and '.join(map(str, sorted(lengths)))} entries"
    single = (*given.get("state_steps", ()), given.get("grad_scale"), given.get("found_inf"))
    if any(isinstance(number, torch.Tensor) and number.numel() != 1 for number in single):
        return "a number of steps, a scale or a flag has not one element"
    for tensors in zip(*lists.values(), strict=True):
        # Kernels go through the memory of all of them side by side, as far as the parameter goes.
        outline, *others = map(_outline, tensors)
        if any(other != outline for other in others) or not all(map(is_dense, tensors)):
            return "a parameter, its gradient and what is kept of it differ in shape or dtype, or have gaps"
    return None


def _groups_of_scales(given: Arguments) -> str | None:
    # aten/src/ATen/native/cpu/int4mm_kernel.cpp looks at the groups of a row as they come.
    (columns, groups), size = (given[name].shape[at] for name, at in _GROUPED), given["qGroupSize"]
    if size <= 0 or columns > groups * size:
        return f"{groups} groups of {size} scales for {columns} columns"
    return None


def _statistics_of_quantization(given: Arguments) -> str | None:
    # aten/src/ATen/native/quantized/FusedObsFakeQuant.cpp: calculate_moving_average writes as many as the input has
    # channels; where there are none yet it makes them all.
    per_row, axis = given.get("per_row_fake_quant", False), given["ch_axis"]
    if per_row and not 0 <= axis < given["self"].dim():
        # It writes to the place of that dimension in a list of them.
        return f"its channels are those of dimension {axis}"
    channels = given["self"].shape[axis] if per_row else 1
    lengths = [given[name].numel() for name in _STATISTICS]
    if lengths[0] != 0 and any(length != channels for length in lengths):
        return f"its statistics have {lengths} elements for {channels} channels"
    return None


def _outline(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device, tuple[int, ...]]:
    return tensor.dtype, tensor.device, tuple(tensor.shape)


def _sizes_of_a_layer(given: Arguments) -> str | None:
    # aten/src/ATen/native/mkldnn/RNN.cpp: mkldnn_rnn_layer has the memory of all of them read as these sizes say.
    rows, batch, hidden = 4 * given["hidden_size"], given["input"].shape[1], given["hidden_size"]
    wanted = {
        "weight0": (rows, given["input"].shape[2]),
        "weight1": (rows, hidden),
        "hx_": (1, batch, hidden),
        "cx_": (1, batch, hidden),
    }
    for name, sizes in wanted.items():
        if tuple(given[name].shape) != sizes:
            return f"{name} is {tuple(given[name].shape)} and not {sizes}"
    # Without biases torch gives zeros that are as many as the weights (torch/_decomp/decompositions.py).
    is_short = any(given[name].numel() < rows for name in ("weight2", "weight3"))
    return f"a bias has fewer than {rows} elements" if is_short else None


def _number_of_heads(given: Arguments) -> str | None:
    # aten/src/ATen/native/transformers/attention.cpp divides by it.
    heads = given["num_heads"] if "num_heads" in given else given["num_head"]
    return None if heads > 0 else f"it has {heads} heads"


def _number_of_groups(given: Arguments) -> str | None:
    # aten/src/ATen/native/ChanelShuffle.cpp of torch 2.11 divides by it.
    return None if given["groups"] > 0 else f"it has {given['groups']} groups"


def _elements_apart(given: Arguments) -> str | None:
    # aten/src/ATen/native/Sorting.cpp: median_with_indices_impl of CPUs gives what lies behind elements that are one.
    values, dimension = given["self"], given.get("dim")
    if dimension is None or values.device.type != "cpu" or values.dim() == 0:
        return None
    is_one = values.stride(dimension) == 0 and values.shape[dimension] > 1
    return f"its elements along dimension {dimension} are the same memory" if is_one else None


def _degree(given: Arguments) -> str | None:
    # aten/src/ATen/native/Math.h has as many steps for each element, in C++.
    degree = given["n"]
    known = [each.max().item() for each in constants_of(degree)] if isinstance(degree, torch.Tensor) else [degree]
    if not known:
        return "of which degree it is, is not known before it runs"
    return next((f"it is of degree {each}, at most {MOST_DEGREE}" for each in known if each > MOST_DEGREE), None)


def _number_of_bins(given: Arguments) -> str | None:
    # aten/src/ATen/native/cpu/HistogramKernel.cpp finds the bin of an element in numbers of the input's dtype: where
    # these lie a whole bin apart, the largest element is counted beyond the last one.
    dtype, bins = given["self"].dtype, given.get("bins", 100)
    most = round(1 / torch.finfo(dtype).eps) if dtype.is_floating_point else bins
    return f"it has {bins} bins, and {dtype} tells {most} apart" if bins > most else None


def _ends_of_bags(given: Arguments) -> str | None:
    # aten/src/ATen/native/EmbeddingBag.cpp: indices behind the last offset belong to a bag that there is not, which is
    # written, as all do where there is no offset; so does a mode of torch 2.11 that there is not.
    if given.get("include_last_offset", False):
        return LAST_OFFSET
    if given["offsets"].numel() == 0 and given["indices"].numel() != 0:
        return "its indices are in no bag"
    mode = given.get("mode", 0)
    return None if type(mode) is int and mode in _MODES_OF_BAGS else f"it has the mode {mode}"


def _pivots_for_each(given: Arguments) -> str | None:
    # aten/src/ATen/native/BatchLinearAlgebra.cpp: linalg_ldl_solve_out repeats factors for more right sides, and not
    # their pivots.
    *factored, _, _ = given["LD"].shape
    *solved, _, _ = given["B"].shape
    solved = [1] * (len(factored) - len(solved)) + solved
    fits = len(solved) == len(factored) and all(one in (1, other) for one, other in zip(solved, factored, strict=True))
    return None if fits else f"its pivots are for a batch of {factored} and its right sides are one of {solved}"


_MODES_OF_BAGS = (0, 1, 2)
_STATISTICS = ("running_min", "running_max", "scale", "zero_point")
# Arguments whose memory kernels go through as if each element had its own, one after the other.
_WITHOUT_GAPS: Mapping[str, Sequence[str]] = {
    # aten/src/ATen/native/EmbeddingBag.cpp: embedding_bag copies them first, its parts take them as they lie.
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), ("indices", "offsets")),
    "_fused_moving_avg_obs_fq_helper": _STATISTICS,
    "_fused_moving_avg_obs_fq_helper_functional": _STATISTICS,
    "_weight_int4pack_mm": ("qScaleAndZeros",),
    "_weight_int4pack_mm_for_cpu": ("qScaleAndZeros",),
    "_weight_int8pack_mm": ("scales",),
    "_weight_norm_interface": ("v", "g"),
    "native_group_norm": ("weight", "bias"),
    # torch/_inductor/lowering.py: resize
    **dict.fromkeys(("resize", "resize_", "resize_as", "resize_as_"), ("self",)),
    "rrelu_with_noise": ("noise",),
    "rrelu_with_noise_": ("noise",),
    "rrelu_with_noise_functional": ("noise",),
}
_GROUPED = (("self", 1), ("qScaleAndZeros", 0))


def _scales_of_channels(given: Arguments) -> str | None:
    # torch/_inductor/lowering.py: quantized_decomposed_quantize_per_channel reads a scale for each place on the axis.
    shape, axis = given["input"].shape, given["axis"]
    if not -len(shape) <= axis < len(shape):
        return f"its axis is {axis}, and its input has {len(shape)} dimensions"
    sizes = [tuple(given[name].shape) for name in ("scales", "zero_points") if isinstance(given[name], torch.Tensor)]
    unfit = next((size for size in sizes if size != (shape[axis],)), None)
    return None if unfit is None else f"{shape[axis]} channels have scales or zero points of {unfit}"


def _dimensions_of_a_transform(given: Arguments) -> str | None:
    # aten/src/ATen/native/mkl/SpectralOps.cpp takes these for numbers of dimensions, and reads half of the result.
    shape, dimensions = given["self"].shape, given["dim"]
    if not dimensions or len({*dimensions}) < len(dimensions) or not {*dimensions} <= set(range(len(shape))):
        return f"its input has {len(shape)} dimensions, and it is to transform {dimensions}"
    if given["normalization"] not in range(3):
        return f"nothing is known of the normalization {given['normalization']}"
    size = given.get("last_dim_size")
    if size is not None and (size < 1 or shape[dimensions[-1]] != size // 2 + 1):
        return f"a half of {shape[dimensions[-1]]} elements does not belong to a result of {size}"
    return None


def _rows_of_a_matrix(given: Arguments) -> str | None:
    # aten/src/ATen/native/cpu/DistanceOpsKernel.cpp goes through rows of the second size, whatever comes behind it.
    count = given["self"].dim()
    return None if count == 2 else f"its input has {count} dimensions, and distances are those of rows"


# Gradients by how many of their last dimensions are spatial.
_OF_BATCHES = {
    "_adaptive_avg_pool2d_backward": 2,
    "_adaptive_avg_pool3d_backward": 3,
    "adaptive_avg_pool3d_backward": 3,
    "avg_pool2d_backward": 2,
    "avg_pool3d_backward": 3,
    "replication_pad1d_backward": 1,
    "replication_pad2d_backward": 2,
    "replication_pad3d_backward": 3,
}
_CHECKS: Mapping[str, Callable[[Arguments], str | None]] = {
    **{name: partial(_batch_of_a_gradient, spatial=spatial) for name, spatial in _OF_BATCHES.items()},
    "_fused_moving_avg_obs_fq_helper": _statistics_of_quantization,
    "_fused_moving_avg_obs_fq_helper_functional": _statistics_of_quantization,
    "_embedding_bag": _ends_of_bags,
    "_embedding_bag_forward_only": _ends_of_bags,
    "_fft_c2c": _dimensions_of_a_transform,
    "_fft_c2r": _dimensions_of_a_transform,
    "_fft_r2c": _dimensions_of_a_transform,
    "_log_softmax_backward_data": _result_and_its_gradient,
    "_native_multi_head_attention": _number_of_heads,
    "_pdist_forward": _rows_of_a_matrix,
    "_softmax_backward_data": _result_and_its_gradient,
    "_transformer_encoder_layer_fwd": _number_of_heads,
    "_weight_int4pack_mm": _groups_of_scales,
    "_weight_int4pack_mm_for_cpu": _groups_of_scales,
    "_weight_norm_interface": _lengths_of_weights,
    "channel_shuffle": _number_of_groups,
    "dequantize_per_channel": _scales_of_channels,
    "embedding_bag": _ends_of_bags,
    "histc": _number_of_bins,
    "linalg_ldl_solve": _pivots_for_each,
    "median": _elements_apart,
    "mkldnn_rnn_layer": _sizes_of_a_layer,
    "nanmedian": _elements_apart,
    "quantize_per_channel": _scales_of_channels,
    "native_channel_shuffle": _number_of_groups,
    "special_laguerre_polynomial_l": _degree,
    "special_legendre_polynomial_p": _degree,
    **{f"special_{kind}chebyshev_polynomial_{of}": _degree for kind in ("", "shifted_") for of in "tuvw"},
}
