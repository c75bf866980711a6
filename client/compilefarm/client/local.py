"""Graphs without a farm, compiled or not. Nothing here imports more than the standard library, torch and names of its
functions.

A release of torch that moves a private name breaks what talks to the farm; this has to go on. The private names here
are used where they are found and done without where they are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from compilefarm.core.in_place import may_write_in_place

Program = Callable[..., Any]

# What a compile ends with that begins within a call (torch/_inductor/exc.py, torch/_dynamo/exc.py,
# triton/compiler/errors.py). Nothing else that a call raises is about compiling.
_OF_COMPILERS = frozenset(
    {
        "BackendCompilerFailed",
        "CalledProcessError",
        "CompilationError",
        "CppCompileError",
        "InductorError",
        "InvalidCxxCompiler",
        "TritonMissing",
    }
)
# Where Dynamo notes context_fn= of torch.utils.checkpoint (torch/_dynamo/variables/higher_order_ops.py).
_CONTEXT_FN = "_checkpoint_context_fn"
# What a backend raises for Dynamo to act upon (torch/_dynamo/output_graph.py: call_user_compiler).
_FOR_DYNAMO = frozenset({"RestartAnalysis", "SkipFrame"})


class InputsChange(Exception):
    """A graph writes to what it was given."""


def is_for_dynamo(error: BaseException) -> bool:
    """Whether an exception tells Dynamo what to do next rather than what went wrong."""
    return not _FOR_DYNAMO.isdisjoint(_names(error))


def is_of_compiler(error: BaseException) -> bool:
    """Whether an exception comes of compiling rather than of running."""
    return not _OF_COMPILERS.isdisjoint(_names(error))


def compile_graph(graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, object]) -> Program:
    """Compiles as torch.compile would, the backward as well: there it could fail no more without harm."""
    import torch._inductor

    with _compile_lock(), keeping_recursion_limit(), _compiling_backward_at_once():
        program: Program = torch._inductor.compile(graph_module, list(example_inputs), options=dict(options))
    return program


@contextmanager
def keeping_recursion_limit() -> Iterator[None]:
    """Has a compile leave this process as it was.

    Inductor lets the interpreter go deeper (torch/_inductor/compile_fx.py). What Dynamo finds out is for processes of
    the same limit, and in those that load the program nothing is compiled.
    """
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def eager_program(graph_module: Any) -> Program:
    """The graph as it is now, uncompiled. What is done to the graph later does not change it."""
    graph_module = _with_eager_operators(graph_module)
    # A lazy GraphModule (torch/fx/_lazy_graph_module.py) makes its forward when it is asked for its code.
    _ = graph_module.code
    return _without_function_modes(graph_module.forward)


def _without_function_modes(program: Program) -> Program:
    """The program as a compiled one: what torch function modes do to a graph, Dynamo has put into it."""
    try:
        from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily  # torch/overrides.py
    except ImportError:
        return program

    def run(*inputs: Any) -> Any:
        with ExitStack() as stack:
            for _ in _get_current_function_mode_stack():
                stack.enter_context(_pop_mode_temporarily())
            return program(*inputs)

    return run


def _with_eager_operators(graph_module: Any) -> Any:
    """A copy of the graph that calls none of the operators that torch has made to be compiled; the graph itself if it
    calls none.
    """
    if not any(_is_replaced(node) for node in _nodes_of(graph_module)):
        return graph_module
    import torch.fx

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    copied = torch.fx.GraphModule(graph_module, graph)
    for node in graph.nodes:
        if _is_replaced(node):
            node.target = _EAGER_OPERATORS[node.target.__name__]
        elif node.op == "get_attr" and isinstance(inner := getattr(copied, node.target, None), torch.fx.GraphModule):
            setattr(copied, node.target, _with_eager_operators(inner))
    copied.meta.update(graph_module.meta)
    copied.recompile()
    return copied


def _run_checkpointed(graph_module: Any, *inputs: Any, **options: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    if any(map(may_write_in_place, _nodes_of(graph_module))):
        return graph_module(*inputs)
    if _CONTEXT_FN in graph_module.meta:
        options["context_fn"] = graph_module.meta[_CONTEXT_FN]
    return checkpoint(graph_module, *inputs, **{**options, "use_reentrant": False})


def _run_region(graph_module: Any, _: Any, *inputs: Any) -> Any:
    return graph_module(*inputs)


# By the names of the operators that they stand for.
_EAGER_OPERATORS: Mapping[str, Program] = {
    # torch/_higher_order_ops/invoke_subgraph.py: with torch 2.11 its backward asks for fake tensors.
    "invoke_subgraph": _run_region,
    # torch/_higher_order_ops/wrap.py: tag_activation_checkpoint_impl leaves the state of generators alone, so that
    # dropout within would have wrong gradients. What a compiled program writes to it writes to once, where a checkpoint
    # would do so again for the gradients.
    "tag_activation_checkpoint": _run_checkpointed,
}


def _nodes_of(graph_module: Any) -> Iterator[Any]:
    for module in graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def _is_replaced(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _EAGER_OPERATORS


def device_types_of(example_inputs: Sequence[Any]) -> set[str]:
    """Kinds of devices that a graph computes on; the CPU if it takes no tensors."""
    import torch

    found = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)}
    return found or {"cpu"}


def has_symbols(graph_module: Any) -> bool:
    """Whether Dynamo has traced a graph with sizes that differ from call to call."""
    import torch

    values = (node.meta.get("example_value") for node in graph_module.graph.nodes if node.op == "placeholder")
    return any(_is_symbolic(each) for value in values for each in _numbers_of(value, torch.Tensor))


def _numbers_of(value: Any, tensor_type: Any) -> Sequence[Any]:
    return (*value.shape, *value.stride(), value.storage_offset()) if isinstance(value, tensor_type) else (value,)


def _is_symbolic(number: Any) -> bool:
    return number is not None and not isinstance(number, int)


def tensors_of(graph_module: Any) -> list[Any]:
    """Tensors that a graph holds."""
    import torch

    attributes = (value for module in graph_module.modules() for value in vars(module).values())
    plain = [value for value in attributes if isinstance(value, torch.Tensor)]
    return [*graph_module.parameters(), *graph_module.buffers(), *plain]


def run_unless_inputs_change(program: Program, inputs: Sequence[Any], *, held: Sequence[Any] = ()) -> Any:
    """Runs an uncompiled graph up to the first operator that would write to what it was given.

    Args:
        program: the graph.
        inputs: of it.
        held: tensors that it holds.

    Raises:
        InputsChange: there is such an operator, or it cannot be told. Nothing was written.
    """
    import torch

    try:
        from torch.utils._python_dispatch import TorchDispatchMode  # torch/utils/_python_dispatch.py
    except ImportError:
        raise InputsChange from None

    given = {_storage(value) for value in (*inputs, *held) if isinstance(value, torch.Tensor)}

    class RefusingWrites(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # torch has no types there
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for value in _written_by(func, args, kwargs or {}):
                if _storage(value) in given:
                    raise InputsChange
            return func(*args, **(kwargs or {}))

    with RefusingWrites():
        return program(*inputs)


def _written_by(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Tensors that an operator writes, by its schema."""
    import torch

    schema = getattr(operator, "_schema", None)
    if schema is None:
        raise InputsChange
    passed = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    written = [
        passed[argument.name]
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in passed
    ]
    flat = (each for value in written for each in (value if isinstance(value, list | tuple) else [value]))
    return [each for each in flat if isinstance(each, torch.Tensor)]


def _storage(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _names(error: BaseException) -> set[str]:
    return {ancestor.__name__ for ancestor in type(error).__mro__}


def _compile_lock() -> AbstractContextManager[object]:
    """The lock under which Dynamo compiles: settings are patched for the whole process."""
    try:
        from torch._dynamo.convert_frame import compile_lock  # torch/_dynamo/convert_frame.py
    except ImportError:
        return nullcontext()
    lock: AbstractContextManager[object] = compile_lock
    return lock


def _compiling_backward_at_once() -> AbstractContextManager[object]:
    name = "force_non_lazy_backward_lowering"
    try:
        from torch._functorch import config  # torch/_functorch/config.py

        getattr(config, name)
        patch: AbstractContextManager[object] = config.patch({name: True})
    except (ImportError, AttributeError):
        return nullcontext()
    return patch
