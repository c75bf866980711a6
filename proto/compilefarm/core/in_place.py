"""Which calls of a graph may write to what they are given, by the names of what they call alone.

Whoever runs graphs without what else is known of torch asks this. A name that is wrongly taken for one that writes
costs nothing but memory (whoever asks computes something once rather than twice).
"""

from __future__ import annotations

from typing import Any

# Their successors with true schemas have longer names (_native_batch_norm_legit).
_STATISTICS = ("batch_norm", "instance_norm")
_OPERATORS = frozenset(
    {"iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub"}
    | {"itruediv", "ixor", "setitem", "delitem"}
)


def may_write_in_place(node: Any) -> bool:
    """Whether a node of torch.fx may write to a tensor that it is given."""
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    # An overload of an operator is called "add_.Tensor".
    name = target.partition(".")[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name in _OPERATORS or any(each in name for each in _STATISTICS)
