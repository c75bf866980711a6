"""Nodes whose results nobody uses, and that do nothing else.

Models leave such nodes in graphs: libraries compute positions or a part of a mask that only some of their ways need,
and that changes with their release and with that of torch. The compiler drops them itself once it has taken calls apart
into operators (torch/_functorch/_aot_autograd/graph_capture.py: eliminate_dead_code). So they decide nothing, and
graphs that differ in them alone are one graph.

What may go is on a list. Torch's own answer, Node.is_impure, is made for graphs of operators: it takes any method for
pure, `add_` too. Most functions and methods have no schema, and schemas of operators do not say everything: batch_norm
writes to its running statistics, _assert_async raises. Whatever is not known to be without effect stays: writes, random
numbers (leaving one draw out changes those that follow), assertions, switches of modes, subgraphs, kernels, operators
of other libraries, and what makes a size that depends on elements, of which other nodes know more because of it.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch.fx import Graph, Node

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.operators import base_of, is_of_torch, may_write
from compilefarm.graph.symbols import find_hint
from compilefarm.graph.targets import (
    OPERATOR_OVERLOAD,
    PYTHON_FUNCTION,
    TENSOR_METHOD,
    TORCH_FUNCTION,
    find_items,
    find_mode_entered,
    find_mode_left,
    name_call,
)
from compilefarm.graph.writes import find_storage
from compilefarm.torch_internals.numpy_calls import name_numpy_call, reads_number
from compilefarm.torch_internals.traced_functions import (
    DISABLE_HOOKS,
    is_question,
    is_question_of_tensor,
    is_usage_log,
    value_switched,
)

# Operators that make, view, copy or compute tensors, as do the functions and methods of these names. They write to
# nothing but out=, and draw no random numbers.
OPERATORS = frozenset(
    {
        "abs", "add", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "bitwise_and", "bitwise_not",
        "bitwise_or", "bitwise_xor", "bmm", "broadcast_to", "cat", "ceil", "chunk", "clamp", "clone", "contiguous",
        "cos", "cumsum", "detach", "div", "empty", "empty_like", "eq", "exp", "expand", "expand_as", "eye", "flatten",
        "flip", "floor", "full", "full_like", "gather", "ge", "gt", "index_select", "isinf", "isnan", "le", "linspace",
        "log", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "matmul", "max",
        "maximum", "mean", "min", "minimum", "mm", "movedim", "mul", "narrow", "ne", "neg", "new_empty", "new_full",
        "new_ones", "new_zeros", "ones", "ones_like", "outer", "permute", "pow", "prod", "reciprocal", "relu", "repeat",
        "reshape", "roll", "round", "rsqrt", "rsub", "scalar_tensor", "select", "sigmoid", "sign", "sin", "softmax",
        "split", "sqrt", "square", "squeeze", "stack", "sub", "sum", "swapaxes", "t", "tanh", "tensor", "tile", "to",
        "transpose", "tril", "triu", "type_as", "unbind", "unflatten", "unsqueeze", "view", "view_as", "where",
        "zeros", "zeros_like",
    }
)  # fmt: skip
# Methods that are no operators: conversions, and what is read of a tensor.
_METHODS = frozenset(
    {
        "bfloat16", "bool", "cpu", "dim", "double", "float", "half", "int", "long", "new_tensor", "numel", "size",
        "stride", "type",
    }
)  # fmt: skip
# Methods of numbers that no request can say.
_QUESTIONS = frozenset(
    {"__bool__", "__float__", "__index__", "__int__", "as_integer_ratio", "bit_length", "is_integer"}
)
_PYTHON_FUNCTIONS = frozenset(
    f"operator.{name}"
    for name in (
        "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lshift", "lt", "matmul", "mod",
        "mul", "ne", "neg", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor",
    )
) | {"builtins.getattr"}  # fmt: skip
_FUNCTIONS_OF_NUMBERS = frozenset({"torch.sym_float", "torch.sym_int"})

_TAKES_DATA = "aten.shallow_copy_data_"


def find_dead_nodes(graph: Graph) -> Set[Node]:
    """The nodes of a graph that can be left out: they have no effect, and only others of them use what they give.

    Inputs stay, used or not: they are how the graph is called.
    """
    dead_nodes, idle = set[Node](), _idle_switches(graph) | _disabling_nothing(graph)
    for node in reversed(graph.nodes):
        if node in idle or (node.users.keys() <= dead_nodes and _has_no_effect(node)):
            dead_nodes.add(node)
    return dead_nodes


def _idle_switches(graph: Graph) -> Set[Node]:
    """The nodes that set how kernels of CUDA's libraries compute, where that decides nothing: each sets what is set
    now, or nothing of the graph is on a GPU and the last one sets what is set now. What a graph asks for is known.

    Models turn TF32 off around what needs more digits (`torch.backends.cuda.matmul.allow_tf32`).
    """
    found: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and value_switched(node.target) is not None:
            found.setdefault(node.target, []).append(node)
    on_gpu = bool(found) and any(map(_is_on_gpu, graph.nodes))
    idle: set[Node] = set()
    for target, nodes in found.items():
        now = value_switched(target)
        if all(node.args == (now,) for node in (nodes if on_gpu else nodes[-1:])):
            idle.update(nodes)
    return idle


def _disabling_nothing(graph: Graph) -> Set[Node]:
    """The nodes that disable hooks on saved tensors in a graph that never enables them, as torch.func does within
    torch.autograd.graph.disable_saved_tensors_hooks: they were disabled before and are so afterwards, and what a graph
    may call has no such hooks.
    """
    if any(find_mode_left(node) == DISABLE_HOOKS for node in graph.nodes):
        return frozenset()
    return {node for node in graph.nodes if find_mode_entered(node) == DISABLE_HOOKS}


def _is_on_gpu(node: Node) -> bool:
    value = node.meta.get("example_value")
    values = value if isinstance(value, list | tuple) else (value,)
    return node.op == "get_attr" or any(isinstance(each, torch.Tensor) and each.is_cuda for each in values)


def _has_no_effect(node: Node) -> bool:
    if node.op == "get_attr" or find_items(node) is not None:
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    return (
        is_usage_log(node.target)
        or _asks(node)
        or _takes_own_data(node)
        or (_only_computes(node) and _is_settled(node.meta.get("example_value")))
    )


def _asks(node: Node) -> bool:
    """Whether a node asks torch for a state, or a number that follows from sizes what it is. Dynamo guards the answer,
    and leaves the question behind.
    """
    if node.op == "call_function":
        return is_question_of_tensor(node.target) or (not node.all_input_nodes and is_question(node.target))
    asked = node.args[0].meta.get("example_value") if node.args and isinstance(node.args[0], Node) else None
    is_number = isinstance(asked, torch.SymInt | torch.SymFloat) and _is_settled(asked)
    return is_number and node.target in _QUESTIONS


def _takes_own_data(node: Node) -> bool:
    """Whether a node gives a tensor the memory that it has, as `module.to(dtype)` within a model does with torch 2.15
    where the module is of that dtype.
    """
    if str(node.target).partition(".default")[0] != _TAKES_DATA or len(node.args) != 2:
        return False
    taking, taken = (_layout(each.meta.get("example_value") if isinstance(each, Node) else None) for each in node.args)
    return taking is not None and taking == taken


def _layout(value: object) -> tuple[object, ...] | None:
    """Where the elements of a tensor lie, and how; None where that is not known."""
    if not isinstance(value, torch.Tensor) or find_storage(value) is None or not _is_settled(value):
        return None
    bits = value.dtype, value.is_conj(), value.is_neg()
    return id(find_storage(value)), bits, value.shape, value.stride(), value.storage_offset()


def _only_computes(node: Node) -> bool:
    if "out" in node.kwargs:
        return False
    if reads_number(node.target) or name_numpy_call(node.target) is not None:
        return True
    try:
        kind, name, _ = name_call(node)
    except Bypass:
        # The encoder says why it cannot be sent.
        return False
    if kind == OPERATOR_OVERLOAD:
        # Some write to results that have other names than out.
        return is_of_torch(name) and base_of(name) in OPERATORS and not may_write(node.target)
    return (
        (kind == TORCH_FUNCTION and (name in _FUNCTIONS_OF_NUMBERS or name.removeprefix("torch.") in OPERATORS))
        or (kind == TENSOR_METHOD and (name in OPERATORS or name in _METHODS))
        or (kind == PYTHON_FUNCTION and name in _PYTHON_FUNCTIONS)
    )


def _is_settled(value: object) -> bool:
    """Whether all sizes and numbers in a value follow from those of the inputs."""
    if isinstance(value, list | tuple):
        return all(map(_is_settled, value))
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return False
        return all(find_hint(size) is not None for size in (*value.shape, *value.stride(), value.storage_offset()))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint is not None
    return isinstance(value, int | float | torch.dtype | torch.device | torch.layout)
