"""What Dynamo and users note beside a node (`node.meta`), as far as it decides how the node is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import GraphModule, Node

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.checkpoint_contexts import CONTEXT_FN
from compilefarm.v1.graph_pb2 import NamedValue, Value

_CUSTOM = "custom"
# Notes that are sent, each with the kind of its value. Those beginning with "custom." are entries of a dictionary that
# torch.fx.traceback.annotate fills, of which the compiler reads these.
_SENT: Mapping[str, str] = {
    # torch/fx/passes/runtime_assert.py: a check of the user's own, which stays.
    "_fx_runtime_assert_preserve": "boolean",
    # torch/_dynamo/variables: what torch.autograd.grad does within a graph; it must not be computed twice.
    "autograd_backward": "boolean",
    # torch/_functorch/partitioners.py: torch.autograd.graph.region_activation_memory_budget
    "custom._region_activation_memory_budget": "real",
    # torch/_inductor/graph.py
    "custom.fallback_to_eager": "boolean",
}
# What the graph was made of, and what is known of values, which the worker finds itself. What activation checkpointing
# notes when it runs a subgraph (torch/_higher_order_ops/wrap.py: tag_nodes) it notes on the worker, too; a policy of
# the user's own for it is noted beside the whole subgraph.
_INERT = frozenset(
    {
        "ac_graph_id", "creation_timestamp", "example_value", "from_node", "fwd_nn_module_stack",
        "fwd_source_fn_stack", "grapharg", "nn_module_stack", "original_aten", "recompute", "seq_nr",
        "source_fn_stack", "stack_trace", "steal_arg", "tensor_dict", "tensor_meta", "torch_fn",
        "unbacked_bindings", "val",
    }
)  # fmt: skip
# Of whole graphs: names, of which none reaches the compiler, the policy of a checkpoint, which is sent beside the node
# that gives its graph, and which numbers torch.export has seen assertions about, which are in the graph
# (torch/export/_trace.py). Everything else is a function or unknown.
_INERT_OF_MODULES = frozenset(
    {
        CONTEXT_FN, "backend_id", "dynamo_compile_id", "dynamo_flat_name_to_original_fqn", "inline_constraints",
        "module_call_specs",
    }
)  # fmt: skip


def encode_annotations(node: Node) -> list[NamedValue]:
    """The notes beside a node that decide something, sorted by name.

    Raises:
        Bypass: one is not known, or cannot be said.
    """
    return [_encode(name, value) for name, value in sorted(_notes(node).items())]


def decode_annotations(annotations: Iterable[NamedValue]) -> dict[str, object]:
    """What to put into the meta of a node.

    Raises:
        InvalidRequest: a note is not one that a request may make.
    """
    meta: dict[str, object] = {}
    for entry in annotations:
        kind = _SENT.get(entry.name)
        if kind is None or entry.value.WhichOneof("kind") != kind:
            raise InvalidRequest(f"{entry.name[:80]!r} is no note that a node can have, or not of its kind")
        value = entry.value.boolean if kind == "boolean" else entry.value.real
        outer, _, name = entry.name.rpartition(".")
        if outer:
            meta[outer] = {**meta.get(outer, {}), name: value}  # type: ignore[dict-item]
        else:
            meta[name] = value
    return meta


def check_module_annotations(graph_module: GraphModule) -> None:
    """Checks that nothing is noted beside a whole graph that decides how it is compiled.

    Raises:
        Bypass: something is.
    """
    for name in sorted(graph_module.meta.keys() - _INERT_OF_MODULES):
        raise Bypass("annotation", f"{name} is noted beside the graph, and decides how it is compiled")


def _notes(node: Node) -> dict[str, object]:
    notes = {name: value for name, value in node.meta.items() if name not in _INERT and name != _CUSTOM}
    custom = node.meta.get(_CUSTOM) or {}
    return notes | {f"{_CUSTOM}.{name}": value for name, value in custom.items()}


def _encode(name: str, value: object) -> NamedValue:
    if _SENT.get(name) == "boolean" and isinstance(value, bool):
        return NamedValue(name=name, value=Value(boolean=value))
    if _SENT.get(name) == "real" and isinstance(value, float):
        return NamedValue(name=name, value=Value(real=value))
    raise Bypass("annotation", f"{name} is noted beside a node ({value!r:.80}), and may decide how it is compiled")
