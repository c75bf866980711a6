"""Launches of Triton kernels within a graph.

Dynamo writes such a launch as a call of a higher-order operator with numbers of a table that holds for the process: one
of the kernel, one of the arguments that are constant (torch/_higher_order_ops/triton_kernel_wrap.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.literals import ValueDecoder, ValueEncoder
from compilefarm.graph.targets import nodes_of
from compilefarm.graph.texts import is_name
from compilefarm.graph.triton_kernels import describe_kernel, write_constants
from compilefarm.torch_internals.operators import HigherOrderOperator
from compilefarm.torch_internals.triton_kernels import kernel_table, launch_operator
from compilefarm.v1.graph_pb2 import Launch, NamedTritonConstant, TritonConstant, TritonKernel

_LAUNCH = "triton_kernel_wrapper_mutation"
_PASSED = frozenset({"kernel_idx", "constant_args_idx", "grid", "tma_descriptor_metadata", "kwargs", "launch_kwargs"})
_AXES = ("x", "y", "z")


def is_launch(node: Node) -> bool:
    """Whether a node launches a kernel of the user's own."""
    # By name first: the module is imported where there is a launch.
    named_so = isinstance(node.target, HigherOrderOperator) and node.target.name() == _LAUNCH
    return named_so and node.target is launch_operator()


def launches_kernels(graph_module: GraphModule) -> bool:
    """Whether a graph, or one within it, launches kernels of the user's own."""
    return any(map(is_launch, nodes_of(graph_module)))


@dataclass(slots=True)
class KernelTable:
    """Numbers the kernels of one graph in the order in which they are launched.

    Attributes:
        kernels: what @triton.jit or @triton.autotune made, by number.
        described: the same as data.
    """

    kernels: list[object] = field(default_factory=list)
    described: list[TritonKernel] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def number(self, kernel: object) -> int:
        """The number of a kernel. Dynamo makes a new one where a launch has options, so that content counts.

        Raises:
            Bypass: it cannot be said.
        """
        described = describe_kernel(kernel)
        content = described.SerializeToString(deterministic=True)
        if content not in self._numbers:
            self._numbers[content] = len(self.kernels)
            self.kernels.append(kernel)
            self.described.append(described)
        return self._numbers[content]


def encode_launch(node: Node, *, into: Launch, values: ValueEncoder, kernels: KernelTable) -> None:
    """Writes a launch.

    Raises:
        Bypass: it cannot be said.
    """
    given: Mapping[str, Any] = node.kwargs
    if node.args or not given.keys() <= _PASSED:
        raise Bypass("triton_kernel", f"torch hands a launch over in another way: {', '.join(sorted(given))}")
    table = kernel_table()
    into.kernel = kernels.number(table.get_kernel(given["kernel_idx"]))
    write_constants(table.get_constant_args(given["constant_args_idx"]), into=into.constants, what="a launch")
    for field_name, name in (("arguments", "kwargs"), ("descriptors", "tma_descriptor_metadata")):
        for key in sorted(given[name]):
            values.write(given[name][key], into=getattr(into, field_name).add(name=key).value)
    for grid in given["grid"]:
        # torch/_higher_order_ops/triton_kernel_wrap.py: call_triton_kernel fills shorter ones with ones.
        if not isinstance(grid, tuple | list) or len(grid) != len(_AXES):
            raise Bypass("triton_kernel", f"a kernel is launched on the grid {grid!r:.80}")
        written = into.grids.add()
        for axis, size in zip(_AXES, grid, strict=True):
            values.write(size, into=getattr(written, axis))
    into.named_arguments.extend(sorted(given.get("launch_kwargs") or ()))


def decode_launch(launch: Launch, rebuilt: FxGraph, values: ValueDecoder, *, kernels: Sequence[Any]) -> Node:
    """The node for a launch.

    Raises:
        InvalidRequest: it is malformed, or launches a kernel that is not there.
    """
    if launch.kernel >= len(kernels):
        raise InvalidRequest(f"the graph has no kernel with number {launch.kernel}")
    kernel = kernels[launch.kernel]
    constants, arguments = read_constants(launch.constants), values.read_named(launch.arguments)
    descriptors = values.read_named(launch.descriptors)
    if descriptors:
        # Triton looks for the types of descriptors there, but whoever makes a descriptor imports it.
        importlib.import_module("triton.tools.tensor_descriptor")
    _check_arguments(launch, constants=constants, arguments=arguments, parameters=kernel.arg_names)
    configurations = len(getattr(kernel, "configs", ())) or 1
    if len(launch.grids) not in (1, configurations):
        raise InvalidRequest(f"{len(launch.grids)} grids for a kernel of {configurations} configurations")
    table = kernel_table()
    passed = {
        "kernel_idx": table.add_kernel(kernel),
        "constant_args_idx": table.add_constant_args(constants),
        "grid": [tuple(values.read(getattr(grid, axis)) for axis in _AXES) for grid in launch.grids],
        "tma_descriptor_metadata": descriptors,
        "kwargs": arguments,
    }
    if launch.named_arguments:
        passed["launch_kwargs"] = tuple(launch.named_arguments)
    return rebuilt.call_function(launch_operator(), (), passed)


def _check_arguments(
    launch: Launch, *, constants: Mapping[str, object], arguments: Mapping[str, object], parameters: Sequence[str]
) -> None:
    unknown = sorted((arguments.keys() | {entry.name for entry in launch.descriptors}) - set(parameters))
    if unknown:
        raise InvalidRequest(f"the kernel has no parameter {unknown[0][:80]!r}")
    if not all(isinstance(argument, Node) for argument in arguments.values()):
        raise InvalidRequest("an argument that is the same at every call is not among the constants")
    if constants.keys() & arguments.keys():
        raise InvalidRequest("an argument is given twice")
    if not {entry.name for entry in launch.descriptors} <= arguments.keys():
        raise InvalidRequest("a descriptor is made of something that is no argument")
    named = list(launch.named_arguments)
    if named != sorted(set(named)) or not set(named) <= constants.keys() | arguments.keys():
        raise InvalidRequest("arguments that were passed by name are not there, or not sorted")


def read_constants(entries: Sequence[NamedTritonConstant]) -> dict[str, Any]:
    """Values that are known while a kernel is compiled.

    Raises:
        InvalidRequest: one is malformed, they are not sorted, or a name is none.
    """
    names = [entry.name for entry in entries]
    if any(first >= second for first, second in pairwise(names)):
        raise InvalidRequest("constants of a kernel are not sorted, or one occurs twice")
    if not all(map(is_name, names)):
        raise InvalidRequest("the name of a constant is no name")
    return {entry.name: read_constant(entry.constant) for entry in entries}


def read_constant(constant: TritonConstant) -> Any:
    """A value that is known while a kernel is compiled.

    Raises:
        InvalidRequest: it is malformed.
    """
    language: Any = importlib.import_module("triton.language")
    value: Any
    match constant.WhichOneof("kind"):
        case "value":
            value = ValueDecoder(nodes=()).read(constant.value)
        case "dtype":
            if constant.dtype not in _types(language):
                raise InvalidRequest(f"Triton has no type {constant.dtype[:80]!r}")
            value = language.dtype(constant.dtype)
        case _:
            raise InvalidRequest("a constant of a kernel is not set, or of a kind that is not known")
    return language.constexpr(value) if constant.constexpr else value


def _types(language: Any) -> list[str]:
    kind = language.dtype
    return [*kind.SINT_TYPES, *kind.UINT_TYPES, *kind.FP_TYPES, *kind.OTHER_TYPES]


def find_written(node: Node, *, args: object, kwargs: object) -> Iterator[torch.Tensor]:
    """The tensors that kernels of the user's own may write to when a node is run with these arguments.

    Which they do write to, torch finds out by compiling them; that is not waited for here.
    """
    values = list(_leaves((args, kwargs)))
    if is_launch(node) or any(isinstance(value, GraphModule) and _launches(value) for value in values):
        yield from (value for value in values if isinstance(value, torch.Tensor))


def _launches(graph_module: GraphModule) -> bool:
    inner = (module for module in graph_module.modules() if isinstance(module, GraphModule))
    return any(is_launch(node) for module in inner for node in module.graph.nodes)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
