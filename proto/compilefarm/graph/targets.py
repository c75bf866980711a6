"""What a node may call. Every target has a name in one of a few name spaces, and a name is resolved only by looking it
up in a table whose entries come from torch itself: nothing is imported, and no attribute of a name that a request sent
is ever followed.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import torch
from torch.fx import Node
from torch.nn.attention import SDPBackend

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import MAX_MAGNITUDE
from compilefarm.graph import attention
from compilefarm.graph.admitted_operators import is_admitted
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.higher_order import SIGNATURES
from compilefarm.graph.inner_calls import find_replaced_call
from compilefarm.graph.operators import (
    base_of,
    find_function,
    find_operator,
    is_of_torch,
    name_function,
    operators_of_torch,
)
from compilefarm.graph.replacements import is_own_function, is_own_method
from compilefarm.graph.symbols import find_hint
from compilefarm.graph.tensors import MAX_DIMENSIONS
from compilefarm.torch_internals import operators as torch_operators
from compilefarm.torch_internals import traced_functions
from compilefarm.torch_internals.numpy_calls import (
    ARRAY,
    find_attribute,
    function_behind,
    name_numpy_call,
    numpy_calls,
    operator_behind,
)
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, OpOverloadPacket, name_of_packet
from compilefarm.torch_internals.traced_functions import (
    DATA_OF_TENSOR,
    DISABLE_HOOKS,
    ENTER_AUTOCAST,
    ENTER_DUAL,
    ENTER_GRAD,
    ENTER_INFERENCE,
    ENTER_JVP,
    ENTER_VMAP,
    EXITS,
    FORWARD_SWITCH,
    FUNCTION_MODULES,
    FUNCTORCH_SWITCH,
    GRAD_MODE,
    OF_MODES,
    SDPA_BACKEND,
    SDPA_KERNEL,
    SINGLE_FUNCTIONS,
    SYMBOLIC,
)
from compilefarm.v1.graph_pb2 import TargetKind

TORCH_FUNCTION = TargetKind.TARGET_KIND_TORCH_FUNCTION
PYTHON_FUNCTION = TargetKind.TARGET_KIND_PYTHON_FUNCTION
OPERATOR_OVERLOAD = TargetKind.TARGET_KIND_OPERATOR_OVERLOAD
OPERATOR_PACKET = TargetKind.TARGET_KIND_OPERATOR_PACKET
TENSOR_METHOD = TargetKind.TARGET_KIND_TENSOR_METHOD
HIGHER_ORDER_OPERATOR = TargetKind.TARGET_KIND_HIGHER_ORDER_OPERATOR
LIBRARY_FUNCTION = TargetKind.TARGET_KIND_LIBRARY_FUNCTION
# What other libraries than torch may bring, and a worker has to know.
OF_LIBRARIES = (OPERATOR_OVERLOAD, OPERATOR_PACKET, LIBRARY_FUNCTION)

# Of the functions that torch/__init__.py and torch/functional.py define in Python; most others set global state.
_PYTHON_FUNCTIONS_OF_TORCH = frozenset(
    {
        "_check_is_size", "align_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag",
        "broadcast_tensors", "cartesian_prod", "cdist", "chain_matmul", "einsum", "meshgrid", "norm", "split", "stft",
        "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "tensordot",
        "unique_consecutive",
    }
)  # fmt: skip
# Functions that come down to operators which are not admitted (graph/reached_operators.py), so that pods know it, too.
# aten/src/ATen/native/LossCTC.cpp does not hold targets against the number of classes.
_UNHELD = frozenset({"ctc_loss"})
# Modes that are left without being told what entering gave.
_LEFT_BARE = frozenset({ENTER_VMAP, ENTER_GRAD, DISABLE_HOOKS, *ENTER_JVP})
# Operators that call subgraphs and do nothing else: torch/_higher_order_ops and torch/_functorch/autograd_function.py.
_HIGHER_ORDER = tuple(SIGNATURES)
_OPERATOR_FUNCTIONS = (
    "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "iadd", "iand", "ifloordiv", "ilshift", "imatmul",
    "imod", "imul", "index", "invert", "ior", "ipow", "irshift", "is_", "is_not", "isub", "itruediv", "ixor", "le",
    "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "setitem", "sub",
    "truediv", "truth", "xor",
)  # fmt: skip
# Those that torch chooses among; the other stands for none of them.
_ATTENTION_BACKENDS = SDPBackend.__members__.keys() - {"ERROR"}
_BUILTIN_FUNCTIONS = ("abs", "divmod", "getattr", "len", "max", "min", "pow", "round", "sum")
# Those that take numbers alone, give one, and take no time.
_MATH_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "degrees",
    "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "gamma", "hypot", "lgamma", "log", "log10", "log1p",
    "log2", "nextafter", "pow", "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "ulp",
)  # fmt: skip
# What on plain numbers and lists can take any time and memory. Dynamo folds it away while sizes are static, but not
# where a symbol turns out to be one number later in a graph.
_RAISING = frozenset({operator.pow, operator.ipow, pow, operator.lshift, operator.ilshift})
_GROWING = _RAISING | {operator.add, operator.iadd, operator.mul, operator.imul}
_HIGHEST_POWER = 64
_FOLDS = frozenset({sum, max, min})
_MOST_DIGITS = 400
# Of lists within lists. What recurrent networks give has a few.
_MOST_NESTED = 1_000
# What builtins.getattr may read.
ATTRIBUTES = frozenset(
    {"H", "T", "device", "dtype", "imag", "itemsize", "layout", "mH", "mT", "nbytes", "ndim", "real", "requires_grad",
     "shape"}
)  # fmt: skip
# Attributes that are operators by another name (torch/csrc/autograd/python_variable.cpp: PropertyT and the like).
ATTRIBUTE_OPERATORS = {"aten::numpy_T": "T", "aten::mT": "mT", "aten::matrix_H": "H", "aten::mH": "mH"}

# Operators under their method names, which Dynamo captures where a model calls super().__eq__ or x.__add__.
_OPERATOR_METHODS = frozenset(
    f"__{name}__"
    for name in (
        "abs", "add", "and", "eq", "floordiv", "ge", "getitem", "gt", "iadd", "iand", "imul", "invert", "ior", "isub",
        "itruediv", "ixor", "le", "lt", "matmul", "mod", "mul", "ne", "neg", "or", "pos", "pow", "radd", "rand",
        "rfloordiv", "rmatmul", "rmul", "ror", "rpow", "rsub", "rtruediv", "rxor", "setitem", "sub", "truediv", "xor",
    )
)  # fmt: skip


def name_target(target: object) -> tuple[TargetKind.ValueType, str]:
    """Name space and name of a function or operator that a node calls.

    Raises:
        Bypass: it is not on the list of what can be sent.
    """
    if isinstance(target, OpOverload):
        return OPERATOR_OVERLOAD, _check_operator(target.name())
    if isinstance(target, OpOverloadPacket):
        return OPERATOR_PACKET, _check_operator(name_of_packet(target))
    if isinstance(target, HigherOrderOperator):
        name = target.name()
        if higher_order_operators().get(name) is target:
            return HIGHER_ORDER_OPERATOR, name
        raise Bypass("higher_order_operator", f"the graph uses the higher-order operator {name}")
    of_numpy = name_numpy_call(target)
    if of_numpy is not None:
        return TORCH_FUNCTION, of_numpy
    # Only types whose equality is known: a user's callable may define its own.
    if type(target) in (BuiltinFunctionType, FunctionType):
        for kind, names in ((PYTHON_FUNCTION, _python_names()), (TORCH_FUNCTION, _torch_names())):
            name = names.get(target)
            if name is not None:
                return kind, name
        function = name_function(target)
        if function is not None:
            return LIBRARY_FUNCTION, function
    raise Bypass("unknown_target", f"the graph calls {_describe(target)}, which the farm does not take")


def is_known(node: Node) -> bool:
    """Whether a request can name what a node calls."""
    try:
        name_call(node)
    except Bypass:
        return False
    return True


def name_call(node: Node) -> tuple[TargetKind.ValueType, str, Sequence[object]]:
    """Name space and name of what a node calls, and its positional arguments; the same for every release of torch where
    Dynamo has several ways to write a call.

    Raises:
        Bypass: it is not on the list of what can be sent.
    """
    method = _method_of(node)
    if method is None:
        if find_attribute(node.target, node.args) is not None:
            return *name_target(getattr), node.args
        twin = _twin_of(node)
        if twin is not None:
            return TORCH_FUNCTION, twin, node.args
        kind, name = name_target(node.target)
        # For `x.T` Dynamo writes builtins.getattr in one release and the operator in another.
        if kind == OPERATOR_PACKET and name in ATTRIBUTE_OPERATORS and len(node.args) == 1 and not node.kwargs:
            return PYTHON_FUNCTION, "builtins.getattr", (*node.args, ATTRIBUTE_OPERATORS[name])
        return kind, name, node.args
    if method == "__round__":
        # Dynamo writes it for round() of a symbolic number; for a whole one it writes builtins.round.
        return *name_target(round), node.args
    if method not in _tensor_methods():
        raise Bypass("unknown_target", f"the graph calls the method {method}, which the farm does not take")
    if not is_own_method(method):
        where = f"torch.Tensor.{method}"
        raise Bypass("replaced_operator", f"this process has something of its own in the place of {where}")
    # For `x == y` Dynamo writes operator.eq in one release and Tensor.__eq__ in another.
    function = vars(operator).get(method) if method.startswith("__") and not node.kwargs else None
    if function in _python_names():
        return *name_target(function), node.args
    return TENSOR_METHOD, method, node.args


def _twin_of(node: Node) -> str | None:
    """The function that does what a binding does that a node calls; None if it calls no such binding.

    Dimensions that are counted from the end mean something to the function alone.
    """
    dimensions = [value for value in node.args if type(value) is int]
    if type(node.target) is not BuiltinFunctionType or node.kwargs or any(value < 0 for value in dimensions):
        return None
    return _twins().get(node.target)


@functools.cache
def _twins() -> Mapping[object, str]:
    return {traced_functions.load_function(binding): twin for binding, twin in traced_functions.TWINS.items()}


def _method_of(node: Node) -> str | None:
    """The name of the Tensor method that a node calls; None if it calls something else.

    Of methods that are written in Python Dynamo calls the function where a model has asked for the method earlier, as
    across a graph break (torch/_dynamo/variables/tensor.py).
    """
    if node.op == "call_method":
        return str(node.target)
    name = getattr(node.target, "__name__", "") if type(node.target) is FunctionType else ""
    return name if name in _tensor_methods() and vars(torch.Tensor).get(name) is node.target else None


def check_inner_calls(graph_module: torch.fx.GraphModule) -> None:
    """Checks what functions and methods of torch call that a graph calls.

    Raises:
        Bypass: something of this process's own.
    """
    nodes = list(nodes_of(graph_module))
    functions = {node.target for node in nodes if node.op == "call_function" and type(node.target) is FunctionType}
    methods = {name for name in map(_method_of, nodes) if name is not None}
    called = [*(each for each in functions if each in _torch_names()), *map(vars(torch.Tensor).get, methods)]
    attribute = next((name for name in sorted(ATTRIBUTES) if not is_own_method(name)), None)
    called += [function_behind(node.target) for node in nodes if name_numpy_call(node.target) is not None]
    replaced = find_replaced_call(called) or (attribute and f"torch.Tensor.{attribute}")
    if replaced is not None:
        raise Bypass("replaced_operator", f"this process has something of its own in the place of {replaced}")


def get_target(kind: TargetKind.ValueType, *, name: str, operators: Set[str] = frozenset()) -> Callable[..., Any] | str:
    """What to call: an object, or for a Tensor method its name.

    Args:
        kind: the name space.
        name: the name in it.
        operators: names of the operators of other libraries than torch that may be called, with their overloads.

    Raises:
        InvalidRequest: the name is not on the list of what a request may call.
    """
    target: Callable[..., Any] | str | None = None
    if kind == TENSOR_METHOD:
        target = name if name in _tensor_methods() else None
    elif kind in (OPERATOR_OVERLOAD, OPERATOR_PACKET):
        target = _find_operator(name, kind=kind, operators=operators)
    elif kind == LIBRARY_FUNCTION:
        target = find_function(name) if name in operators else None
    elif kind == HIGHER_ORDER_OPERATOR:
        target = higher_order_operators().get(name)
    elif kind == PYTHON_FUNCTION:
        target = _python_functions().get(name)
    elif kind == TORCH_FUNCTION:
        target = _torch_functions().get(name) or numpy_calls().get(name)
    if target is None:
        raise InvalidRequest(f"{name[:120]!r} is not among the functions that a request may call (name space {kind})")
    return target


def may_call(name: str, *, operators: Set[str]) -> bool:
    """Whether a graph may call an operator, by its name with its overload.

    Args:
        name: of an operator that is registered.
        operators: names of the operators of other libraries than torch that may be called.
    """
    return _find_operator(name, kind=OPERATOR_OVERLOAD, operators=operators) is not None


def is_of_library(target: object, *, operators: Set[str]) -> bool:
    """Whether a node calls an operator or a function of another library than torch, of those that may be called."""
    if isinstance(target, OpOverload):
        return target.name() in operators
    if isinstance(target, OpOverloadPacket):
        return name_of_packet(target) in operators
    return type(target) is FunctionType and name_function(target) in operators


def target_names() -> Mapping[TargetKind.ValueType, Set[str]]:
    """What a request may call with this torch, by name space, beside what other libraries bring."""
    operators = frozenset(filter(is_admitted_operator, operators_of_torch()))
    return {
        TORCH_FUNCTION: _torch_functions().keys() | numpy_calls().keys(),
        PYTHON_FUNCTION: _python_functions().keys(),
        OPERATOR_OVERLOAD: operators,
        OPERATOR_PACKET: frozenset(name.partition(".")[0] for name in operators),
        TENSOR_METHOD: _tensor_methods(),
        HIGHER_ORDER_OPERATOR: higher_order_operators().keys(),
    }


def find_objection(
    kind: TargetKind.ValueType, *, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Why a target that may be called may not be called with these arguments; None if it may."""
    if kind == TENSOR_METHOD and not (args and isinstance(args[0], Node)):
        return "a method is called on something that is not the result of a node"
    if name == "builtins.getattr" and (
        len(args) != 2 or kwargs or not isinstance(args[1], str) or args[1] not in ATTRIBUTES
    ):
        return f"only the attributes {', '.join(sorted(ATTRIBUTES))} may be read"
    if name == GRAD_MODE and not (len(args) == 1 and isinstance(args[0], bool) and not kwargs):
        return "the grad mode is switched by one literal"
    if name in (FUNCTORCH_SWITCH, FORWARD_SWITCH, DISABLE_HOOKS) and not (
        len(args) == 1 and isinstance(args[0], bool | str) and not kwargs
    ):
        return "a mode is switched by one literal"
    if name == "builtins.round" and kwargs:
        return "how many digits is said by place"
    if name == ARRAY and kwargs.get("ndmin", 0) not in range(MAX_DIMENSIONS + 1):
        # torch/_numpy/_util.py: _coerce_to_tensor makes a shape of that length.
        return f"an array has at most {MAX_DIMENSIONS} dimensions, said by a literal"
    if name in (ENTER_AUTOCAST, ENTER_INFERENCE) and (
        kwargs or not args or any(isinstance(argument, Node) for argument in args)
    ):
        return "a mode is entered with literals"
    if name == SDPA_BACKEND and not (
        len(args) == 1 and isinstance(args[0], str) and args[0] in _ATTENTION_BACKENDS and not kwargs
    ):
        return "a backend for attention is named by one literal"
    if name == SDPA_KERNEL and not (
        len(args) == 2 and _are_backends(args[0]) and isinstance(args[1], bool) and not kwargs
    ):
        return "backends for attention are a list of those that were named, each once, and a literal"
    if name == "type" and not (len(args) == 2 and isinstance(args[1], torch.dtype) and not kwargs):
        return "type converts to a dtype and does nothing else"
    return None


def _are_backends(value: object) -> bool:
    """Whether a value lists backends for attention, each once: torch writes as many as there are, with those that are
    missing, into an array of that length (aten/src/ATen/Context.cpp: setSDPPriorityOrder).
    """
    if not isinstance(value, list | tuple):
        return False
    calls = [each for each in value if isinstance(each, Node) and _torch_names().get(each.target) == SDPA_BACKEND]
    return len(calls) == len(value) == len({each.args for each in calls})


def find_mode_entered(node: Node) -> str | None:
    """The mode of the thread that a node enters until another leaves it; None if it enters none."""
    return _entering().get(node.target) if node.op == "call_function" else None


def find_mode_left(node: Node) -> str | None:
    """The mode of the thread that a node leaves; None if it leaves none."""
    return _leaving().get(node.target) if node.op == "call_function" else None


def leave_mode(mode: str, entered: Any) -> None:
    """Leaves a mode in the place of the node that should have left it; `entered` is what entering it gave."""
    leave = _torch_functions()[EXITS[mode]]
    if mode in ENTER_DUAL:
        leave(level=entered)
    else:
        leave(*(() if mode in _LEFT_BARE else (entered,)))


@functools.cache
def _entering() -> Mapping[object, str]:
    return {_torch_functions()[name]: name for name in EXITS if name in _torch_functions()}


@functools.cache
def _leaving() -> Mapping[object, str]:
    return {_torch_functions()[leave]: enter for enter, leave in EXITS.items() if enter in _torch_functions()}


def nodes_of(graph_module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Nodes of a graph and of the graphs in it."""
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def cacheable_names(graph_module: torch.fx.GraphModule) -> list[str]:
    """What a graph calls, as torch names it in the setting for what may be saved beyond what it saves by itself."""
    # torch/_ops.py: HigherOrderOperator.cacheable; torch/_functorch/_aot_autograd/autograd_cache.py: check_node_safe.
    # Lowering may put other higher-order operators into the place of those of the graph.
    called = [
        *higher_order_operators().values(),
        *(
            node.target
            for node in nodes_of(graph_module)
            if isinstance(node.target, FunctionType) or name_numpy_call(node.target) is not None
        ),
    ]
    return sorted({f"{target.__module__}.{target.__name__}" for target in called})


@functools.cache
def higher_order_operators() -> Mapping[str, HigherOrderOperator]:
    """The higher-order operators that a graph may call, by name."""
    known = torch_operators.higher_order_operators()
    return {name: known[name] for name in _HIGHER_ORDER if name in known}


def is_of_python(target: object) -> bool:
    """Whether a node calls one of Python's own functions, or something of NumPy's that comes down to one."""
    if type(target) is BuiltinFunctionType:
        return target in _python_names()
    return type(target) is FunctionType and name_numpy_call(target) is not None


def find_hazard(target: object, *, args: Sequence[object]) -> str | None:
    """Why a call that is about to run on these values might take any time and memory; None if nothing says so.

    Python's own functions know no bounds on plain numbers, texts and lists; Dynamo folds such calls away.

    Args:
        target: what is called, or the name of a method.
        args: what it is called with; the first is what a method is called on.
    """
    if isinstance(target, str):
        target, args = _behind_method(target, args)
    if not is_of_python(target):
        return None
    if _counted_nested(args) > _MOST_NESTED:
        return "its lists hold lists of too many things"
    if type(target) is FunctionType:
        target = operator_behind(target)
    elif target not in (getattr, operator.getitem) and any(isinstance(argument, str) for argument in args):
        return "an operator is called on text"
    on_tensors = any(isinstance(argument, torch.Tensor) for argument in args)
    if target in _GROWING and not on_tensors and _may_grow(target, args):
        return "an operator that grows is called on large numbers or on lists"
    if target is operator.setitem and not isinstance(args[0] if args else None, torch.Tensor):
        return "an item of something that is no tensor is set"
    if target in _FOLDS and len(args) == 1 and isinstance(args[0], torch.Tensor):
        return "a tensor is iterated over"
    if target is sum and any(isinstance(item, list | tuple | str) for item in _items(args)):
        return "lists are added up"
    if target is round and len(args) > 1 and not (isinstance(args[1], int) and abs(args[1]) <= _MOST_DIGITS):
        return "a number is rounded to that many digits"
    return None


def _behind_method(name: str, args: Sequence[object]) -> tuple[object, Sequence[object]]:
    """The function of Python that a method of something that is no tensor comes down to, and what that is called with;
    None if it is none of those that may be called.
    """
    if args and not isinstance(args[0], torch.Tensor):
        found = vars(operator).get(name)
        if found in _python_names():
            return found, args
        reflected = vars(operator).get(f"__{name[3:]}") if name.startswith("__r") else None
        if reflected in _python_names():
            return reflected, args[::-1]
    return None, args


def _may_grow(target: object, args: Sequence[object]) -> bool:
    """Whether numbers, as they are in the call at hand, or lists may become larger than what can be computed with."""
    if any(isinstance(argument, list | tuple) for argument in args):
        return True
    if any(map(_stays_small, args)):
        return target in _RAISING and _raises_far(args)
    return not _is_arithmetic(target, args)


def _raises_far(args: Sequence[object]) -> bool:
    """Whether a whole number is raised, or shifted, beyond what any size is: of symbols torch computes what comes of it
    in the call at hand.
    """
    if len(args) < 2 or not all(isinstance(value, int | torch.SymInt) for value in args):
        return False
    base, exponent = (find_hint(cast(Any, value)) for value in args[:2])
    return base not in (-1, 0, 1) and (exponent or 0) > _HIGHEST_POWER


def _counted_nested(args: Sequence[object]) -> int:
    """How many things the lists among arguments hold in further lists; not all are counted where they are too many.

    A list that holds another twice takes no memory, and whoever goes through it goes twice as far.
    """
    waiting = [item for item in _items(args) if isinstance(item, list | tuple)]
    count = 0
    while waiting and count <= _MOST_NESTED:
        items = waiting.pop()
        count += len(items)
        waiting += [item for item in items if isinstance(item, list | tuple)]
    return count


def _stays_small(value: object) -> bool:
    """Whether what it is combined with becomes of its kind: a float, or an expression, whose size is looked at."""
    return isinstance(value, float | torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_arithmetic(target: object, args: Sequence[object]) -> bool:
    """Whether all that is computed is a number of at most some thousand bits, with which nothing is computed then."""
    return all(isinstance(value, int) and abs(value) <= MAX_MAGNITUDE for value in args) and (
        target not in _RAISING or (len(args) == 2 and abs(cast(int, args[1])) <= _HIGHEST_POWER)
    )


def _items(args: Sequence[object]) -> Iterator[object]:
    for argument in args:
        yield from argument if isinstance(argument, list | tuple) else ()


def find_items(node: Node) -> tuple[object, ...] | None:
    """What a node puts into a tuple, if that is all it does: a named tuple, or the sizes of a tensor; else None."""
    target = node.target
    if node.op != "call_function" or type(target) is not type or not issubclass(target, tuple) or node.kwargs:
        return None
    if target is torch.Size:
        # torch/_dynamo/variables/lists.py: SizeVariable writes it where one of several sizes is an expression.
        sizes = node.args[0] if len(node.args) == 1 else None
        return tuple(sizes) if isinstance(sizes, list | tuple) else None
    # collections.namedtuple and typing.NamedTuple have it made in a module of this name; that of a binding is None.
    return node.args if (target.__new__.__module__ or "").startswith("namedtuple_") else None


@functools.cache
def _torch_functions() -> Mapping[str, Callable[..., Any]]:
    """The functions that Dynamo leaves in graphs, as far as they compute on tensors."""
    listed = traced_functions.listed_names()
    admitted = (name for name, is_binding in listed if _is_admitted(name, is_binding=is_binding))
    # Dynamo's tables hold the others in some releases only.
    found = ((name, traced_functions.load_function(name)) for name in (*admitted, *OF_MODES, *SYMBOLIC, DATA_OF_TENSOR))
    return {
        name: function
        for name, function in found
        if type(function) in (BuiltinFunctionType, FunctionType) and is_own_function(function, name=name)
    }


def _is_admitted(qualified_name: str, *, is_binding: bool) -> bool:
    module, _, name = qualified_name.rpartition(".")
    if qualified_name == GRAD_MODE or qualified_name in SINGLE_FUNCTIONS:
        return True
    if is_binding:
        # A binding is an operator by another name.
        return (module == "torch" or module in FUNCTION_MODULES) and is_admitted(name)
    if module == "torch":
        return name in _PYTHON_FUNCTIONS_OF_TORCH
    return module in FUNCTION_MODULES and not name.startswith("_") and name not in _UNHELD


def is_admitted_operator(name: str) -> bool:
    """Whether a graph may call an operator of torch, by its qualified name ("aten::add" or "aten::add.Tensor")."""
    return name in attention.OPERATORS or is_admitted(base_of(name), namespace=name.partition("::")[0])


@functools.cache
def _torch_names() -> Mapping[object, str]:
    return _inverted(_torch_functions())


@functools.cache
def _python_functions() -> Mapping[str, Callable[..., Any]]:
    def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
        for module, names in (
            (operator, _OPERATOR_FUNCTIONS),
            (builtins, _BUILTIN_FUNCTIONS),
            (math, _MATH_FUNCTIONS),
        ):
            yield from ((f"{module.__name__}.{name}", getattr(module, name)) for name in names)

    return dict(functions())


@functools.cache
def _python_names() -> Mapping[object, str]:
    return _inverted(_python_functions())


def _inverted(functions: Mapping[str, Callable[..., Any]]) -> Mapping[object, str]:
    names: dict[object, str] = {}
    for name, function in functions.items():
        # One object under several names has to have one key.
        names[function] = min(name, names.get(function, name))
    return names


@functools.cache
def _tensor_methods() -> frozenset[str]:
    return _OPERATOR_METHODS | frozenset(
        name for name in dir(torch.Tensor) if is_admitted(name) and callable(getattr(torch.Tensor, name))
    )


def _check_operator(name: str) -> str:
    if is_of_torch(name) and not is_admitted_operator(name):
        raise Bypass("unknown_target", f"the graph calls the operator {name}, which the farm does not take")
    return name


def _find_operator(name: str, *, kind: TargetKind.ValueType, operators: Set[str]) -> Callable[..., Any] | None:
    if is_of_torch(name):
        return find_operator(name, is_overload=kind == OPERATOR_OVERLOAD) if is_admitted_operator(name) else None
    if name not in operators:
        return None
    return find_operator(name, is_overload=kind == OPERATOR_OVERLOAD)


def _describe(target: object) -> str:
    module = getattr(target, "__module__", None)
    # Bindings have qualified names that name what makes them.
    name = getattr(target, "__name__", None) or type(target).__qualname__
    return f"{module}.{name}" if module else str(name)
