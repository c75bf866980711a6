"""Fused attention: the operators that `scaled_dot_product_attention` comes down to, and their gradients.

Graphs of plain tensors, which a pod makes where there are tensor subclasses, name these themselves. Kernels go through
all tensors as the queries are, and believe what the function has checked and the forward pass has made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.core.compiler_settings import names
from compilefarm.torch_internals.fake_tensors import is_dense

Arguments = Mapping[str, Any]

_FORWARD = names("""
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
""")
_BACKWARD = names("""
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
""")
# Those that graphs may call, beside what users write.
OPERATORS = frozenset(f"aten::{name}" for name in (*_FORWARD, *_BACKWARD))
# Tensors that a schema does not call optional, and that are none where no batch has sequences of several lengths.
_ABSENT = ("attn_bias", "cum_seq_k", "cum_seq_q")
_HEADS = ("query", "key", "value")
_GRADIENT_ON_CPU = "_scaled_dot_product_flash_attention_for_cpu_backward"
_GRADIENT_BY_CUDNN = "_scaled_dot_product_cudnn_attention_backward"


def may_be_absent(operator: str, *, argument: str) -> bool:
    """Whether None stands for a tensor that the schema of an operator demands ("aten::gelu")."""
    return operator in OPERATORS and argument in _ABSENT


def find_objection(given: Arguments) -> str | None:
    """Why a graph may not call one of these operators with these literals; None if it may.

    Args:
        given: arguments by their names; results of nodes stand for anything.
    """
    # Where seeds of dropout lie, on the host or on a GPU, differs from call to call.
    return None if given.get("dropout_p", 0.0) == 0.0 else "attention with dropout is not taken in parts"


def find_check(name: str, *, lays_out: bool) -> Callable[[Arguments], str | None] | None:
    """What holds arguments against each other before an operator runs; None if it is none of these.

    Args:
        name: of the operator, without namespace and overload.
        lays_out: whether heads are laid out for the operator, however they lie now. Inductor leaves them to the
            gradient as it likes, and copies them for the kernel (torch/_inductor/lowering.py: sdpa_constraint).
    """
    fits = (_CHECKS_OF_LAID_OUT if lays_out else _CHECKS).get(name)
    return None if fits is None else lambda given: fits(given) or _find_scattered(name, given, lays_out=lays_out)


def _find_scattered(name: str, given: Arguments, *, lays_out: bool) -> str | None:
    heads = [given[each] for each in (*_HEADS, *(("out", _gradient_in(given)) if name == _GRADIENT_ON_CPU else ()))]
    is_near = all(each.stride(-1) == 1 or each.shape[-1] == 1 or (lays_out and _is_copied(each)) for each in heads)
    return None if is_near else "elements of a head do not lie side by side"


def _is_copied(heads: torch.Tensor) -> bool:
    """Whether Inductor copies heads, which it does where something else lies nearer than their elements."""
    others = zip(heads.shape[:-1], heads.stride()[:-1], strict=True)
    return any(size > 1 and step < heads.stride(-1) for size, step in others)


def _gradient_in(given: Arguments) -> str:
    """The name of the argument that is the gradient of the result."""
    return "grad_out" if "grad_out" in given else "grad_out_"


def _heads(given: Arguments) -> str | None:
    # aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: cpu_flash_attention goes through all three as the first and
    # the second are; several heads of queries may share those of keys.
    query, key, value = (tuple(given[name].shape) for name in _HEADS)
    is_shared = len(query) == len(key) == 4 and query[1] and key[1] and query[1] % key[1] == 0
    if key[:3] != value[:3] or query[0] != key[0] or not is_shared:
        return f"queries, keys and values are {query}, {key} and {value}"
    # Blocks of both are counted, and divided by.
    if query[2] == 0 or key[2] == 0:
        return "there are no queries, or no keys"
    return None


def _heads_on_gpu(given: Arguments) -> str | None:
    query, key, bias = given["query"], given["key"], given.get("attn_bias")
    if (objection := _heads(given)) is not None:
        return objection
    if query.shape[3] != key.shape[3] or not _are_alike([given[name] for name in _HEADS]):
        return "queries, keys and values differ in width, in dtype or in where they lie"
    # cuDNN expands what has fewer dimensions.
    if bias is not None and bias.dim() == 4 and not _covers(bias.shape, (*query.shape[:3], key.shape[2])):
        return f"its bias is {tuple(bias.shape)}, and the scores are of another shape"
    return None


def _covers(shape: Sequence[Any], whole: Sequence[Any]) -> bool:
    return all(size == wanted or size == 1 for size, wanted in zip(shape, whole, strict=True))


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    return len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1


def _results(given: Arguments) -> str | None:
    """What the forward pass has made, and the gradient of its result.

    aten/src/ATen/native/transformers/cuda/attention_backward.cu, flash_attn/flash_api.cpp, native/cudnn/MHA.cpp: sums
    are read as the queries say, and lengths of sequences as they are given.
    """
    query, value, out = given["query"], given["value"], given["out"]
    gradient, sums = given[_gradient_in(given)], given["logsumexp"]
    shape = (*query.shape[:3], value.shape[3])
    if tuple(out.shape) != shape or tuple(gradient.shape) != shape or not _are_alike([query, out, gradient]):
        return "its result and the gradient of it are not what these queries have"
    if any(given.get(name) is not None for name in ("cum_seq_q", "cum_seq_k")):
        return "it is given lengths of sequences"
    wanted = torch.float64 if query.dtype == torch.float64 else torch.float32
    if sums.dtype != wanted or sums.device != query.device or sums.dim() < 3 or sums.shape[:2] != query.shape[:2]:
        return "its sums are not those of these queries"
    return None


def _gradients_by_cudnn(given: Arguments) -> str | None:
    return _gradients_by_cudnn_laid_out(given) or (
        None if given["logsumexp"].is_contiguous() else "its sums are not in the order of these queries"
    )


def _gradients_by_cudnn_laid_out(given: Arguments) -> str | None:
    """The same for sums that Inductor has left in another order, as it does where a graph convolves: cuDNN is told the
    steps between them (aten/src/ATen/native/cudnn/MHA.cpp: build_graph_backward), if they are not copied for it.
    """
    query, key, sums = given["query"], given["key"], given["logsumexp"]
    if (objection := _heads_on_gpu(given) or _results(given)) is not None:
        return objection
    is_stated = (given["max_q"], given["max_k"]) == (query.shape[2], key.shape[2])
    is_whole = sums.numel() == query.shape[0] * query.shape[1] * query.shape[2] and is_dense(sums)
    return None if is_stated and is_whole else "its lengths or its sums are not those of these queries"


def _gradients_of_flash(given: Arguments) -> str | None:
    query, sums = given["query"], given["logsumexp"]
    if (objection := _heads_on_gpu(given) or _results(given)) is not None:
        return objection
    is_whole = sums.shape[2] == query.shape[2] and sums.is_contiguous()
    return None if is_whole else "its sums are not those of these queries"


def _gradients_of_efficient(given: Arguments) -> str | None:
    query, sums, out = given["query"], given["logsumexp"], given["out"]
    if (objection := _heads_on_gpu(given) or _results(given)) is not None:
        return objection
    # mem_eff_attention/kernel_backward.h reads rows of them in blocks, and finds a row of the result by its head.
    is_whole = sums.shape[2] >= query.shape[2] and sums.shape[2] % _BLOCK == 0 and sums.stride(2) == 1
    return None if is_whole and out.transpose(1, 2).is_contiguous() else "its sums or its result lie otherwise"


def _gradients_on_cpu(given: Arguments) -> str | None:
    query, key, value, sums = (given[name] for name in (*_HEADS, "logsumexp"))
    if (objection := _heads(given) or _results(given)) is not None:
        return objection
    widths = {each.shape[3] for each in (query, key, value)}
    if len(widths) > 1 or not _are_alike([query, key, value]):
        return "queries, keys and values differ in width or in dtype"
    is_whole = sums.shape[2] == query.shape[2] and sums.dim() == 3
    return None if is_whole else "its sums are not those of these queries"


# aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h: kAlignLSE
_BLOCK = 32
_CHECKS: Mapping[str, Callable[[Arguments], str | None]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _heads,
    _GRADIENT_ON_CPU: _gradients_on_cpu,
    **dict.fromkeys(_FORWARD, _heads_on_gpu),
    _GRADIENT_BY_CUDNN: _gradients_by_cudnn,
    "_scaled_dot_product_efficient_attention_backward": _gradients_of_efficient,
    "_scaled_dot_product_flash_attention_backward": _gradients_of_flash,
}
_CHECKS_OF_LAID_OUT = {**_CHECKS, _GRADIENT_BY_CUDNN: _gradients_by_cudnn_laid_out}
