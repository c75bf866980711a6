"""What is registered for operators: with the dispatcher, and with the registries of torch.library.

Operators are named as the dispatcher names them ("aten::add.Tensor").
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
from torch._library import simple_registry  # torch/_library/simple_registry.py
from torch._library.custom_ops import OPDEFS  # torch/_library/custom_ops.py

from compilefarm.torch_internals.operators import OpOverload


def dispatcher_dump(operator: str) -> str:
    """The kernels that are registered for an operator and the schema, a line each, with who registered them."""
    # aten/src/ATen/core/dispatch/OperatorEntry.cpp: dumpState
    return str(torch._C._dispatch_dump(operator))


def is_custom_op(operator: str) -> bool:
    """Whether an operator was made by torch.library.custom_op."""
    return _without_overload(operator) in OPDEFS


def functions_of_custom_op(operator: str) -> Iterator[Callable[..., Any]]:
    """The functions that an operator was made of by torch.library.custom_op; none if it was made otherwise."""
    # torch/_library/custom_ops.py: CustomOpDef has each in an attribute, or in a table by device or class.
    for value in list(_attributes_of(operator).values()):
        for function in value.values() if isinstance(value, dict) else (value,):
            if callable(function) and not isinstance(function, OpOverload):
                yield function


def functions_run_by_traces(operator: str) -> Iterator[Callable[..., Any]]:
    """Of an operator that was made by torch.library.custom_op: what says shapes and how it is differentiated."""
    # torch/_library/custom_ops.py: CustomOpDef
    found = _attributes_of(operator)
    single = [found.get(name) for name in ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")]
    yield from (each for each in (*single, *found.get("_torch_dispatch_fns", {}).values()) if each is not None)


def autocast_dtypes(operator: str) -> dict[str, Any]:
    """What torch.library.register_autocast was given for an operator of torch.library.custom_op, by attribute."""
    # torch/_library/custom_ops.py: CustomOpDef has a table by device, and until 2.14 an attribute for each.
    return {name: value for name, value in _attributes_of(operator).items() if name.startswith("_autocast_")}


def kernels_for_python(overload: OpOverload) -> dict[str, Callable[..., Any]]:
    """What OpOverload.py_impl was given for an operator, by the key of the dispatcher, or the mode, that it is for."""
    # torch/_ops.py
    kernels = {getattr(key, "name", None) or repr(key): value for key, value in overload.py_kernels.items()}
    return dict(sorted(kernels.items()))


def fake_implementation(operator: str) -> tuple[Callable[..., Any], str] | None:
    """What torch.library.register_fake was given for an operator, and from where ("file:line"); None if nothing."""
    # torch/_library/fake_impl.py
    kernel = _registry_entry(operator).fake_impl.kernel
    return None if kernel is None else (kernel.func, kernel.source)


def torch_dispatch_rules(operator: str) -> list[Callable[..., Any]]:
    """What torch.library.register_torch_dispatch was given for an operator."""
    return list(_registry_entry(operator).torch_dispatch_rules._data.values())


def implementations_from_python() -> Set[str]:
    """What torch.library.Library.impl has registered in this process, as "aten/gelu/AutogradCPU"."""
    # torch/library.py
    implementations: Set[str] = torch.library._impls
    return implementations


def meta_implementations_of_torch() -> Set[str]:
    """Those of them that torch registers itself when it is imported."""
    # torch/_meta_registrations.py
    values = vars(torch._meta_registrations).values()
    return set[str]().union(*(value._op_impls for value in values if isinstance(value, torch.library.Library)))


def modules_with_libraries_of(operator: str) -> Set[str]:
    """Modules of this process that hold a torch.library.Library by which an operator was defined or got a kernel."""
    # torch/library.py: Library keeps what it did, with the key of the dispatcher behind a slash for kernels.
    kernels = f"{operator.replace('::', '/')}/"
    return {
        name
        for name, module in list(sys.modules.items())
        if not name.startswith("torch.")
        for value in list(getattr(module, "__dict__", {}).values())
        if isinstance(value, torch.library.Library)
        and (operator in value._op_defs or any(each.startswith(kernels) for each in value._op_impls))
    }


def _attributes_of(operator: str) -> dict[str, Any]:
    definition = OPDEFS.get(_without_overload(operator))
    return {} if definition is None else vars(definition)


def _registry_entry(operator: str) -> Any:
    return simple_registry.singleton.find(_without_overload(operator))


def _without_overload(operator: str) -> str:
    return operator.partition(".")[0]
