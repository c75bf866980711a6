"""Functions that Dynamo leaves in graphs, by the names that it has for them.

These names are said on the wire, too: one that a release moves has to stay what requests say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Modules whose functions compute on tensors and do nothing else.
FUNCTION_MODULES = frozenset(
    {
        "torch._C._fft",
        "torch._C._linalg",
        "torch._C._nn",
        "torch._C._special",
        "torch.functional",
        "torch.masked._ops",
        "torch.nn.functional",
        "torch.nn.grad",
    }
)
# Of modules whose other functions serve these alone.
SINGLE_FUNCTIONS = frozenset(
    {
        "torch._lowrank.pca_lowrank",
        "torch._lowrank.svd_lowrank",
        *(
            f"torch.signal.windows.windows.{name}"
            for name in (
                "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming",
                "hamming", "hann", "kaiser", "nuttall",
            )
        ),
    }
)  # fmt: skip
# What Dynamo writes for assertions, sums and tensors of symbolic integers, and for functions of math on them
# (torch/_dynamo/variables/torch.py; torch/__init__.py: _get_sym_math_fn).
SYMBOLIC = (
    "torch._check",
    "torch._refs.tensor",
    "torch.sym_sum",
    *(
        f"torch._sym_{name}"
        for name in ("acos", "asin", "atan", "cos", "cosh", "log2", "sin", "sinh", "sqrt", "tan", "tanh")
    ),
)
# What Dynamo writes for x.data (torch/_dynamo/variables/tensor.py: method_attr_data).
DATA_OF_TENSOR = "torch._C._autograd._get_data_attr"
# Dynamo writes torch.no_grad() inside a model as a pair of calls of this one; it changes the mode of the thread alone.
GRAD_MODE = "torch._C._set_grad_enabled"
# The same for torch.autocast, and for torch.nn.attention.sdpa_kernel, which changes the mode of the process.
ENTER_AUTOCAST = "torch.amp.autocast_mode._enter_autocast"
ENTER_INFERENCE = "torch.autograd.grad_mode._enter_inference_mode"
SDPA_BACKEND = "torch.nn.attention._backend_from_string"
SDPA_KERNEL = "torch.nn.attention._sdpa_kernel"
# What torch.vmap becomes.
_PREDISPATCH = "torch._functorch.predispatch"
ENTER_VMAP = f"{_PREDISPATCH}._vmap_increment_nesting"
_BATCHING = tuple(
    f"{_PREDISPATCH}.{name}" for name in ("_add_batch_dim", "_remove_batch_dim", "lazy_load_decompositions")
)
# The bindings beneath, which libraries call themselves (tensordict), by what torch.vmap calls in their place.
TWINS = {f"torch._C._functorch.{name}": f"{_PREDISPATCH}.{name}" for name in ("_add_batch_dim", "_remove_batch_dim")}
# What torch.func.grad and torch.func.vjp become; some are bindings in one release and their Python twins in another.
ENTER_GRAD = "torch._C._functorch._grad_increment_nesting"
FUNCTORCH_SWITCH = "torch._C._functorch.set_inplace_requires_grad_allowed"
DISABLE_HOOKS = "torch._C._autograd._saved_tensors_hooks_disable"
# What torch.func.jvp becomes.
FORWARD_SWITCH = "torch._C._set_fwd_grad_enabled"
ENTER_JVP = ("torch._C._functorch._jvp_increment_nesting", f"{_PREDISPATCH}._jvp_increment_nesting")
ENTER_DUAL = ("torch._C._enter_dual_level", f"{_PREDISPATCH}._enter_dual_level")
_DIFFERENTIATING = (
    FUNCTORCH_SWITCH,
    FORWARD_SWITCH,
    "torch._make_dual",
    "torch._unpack_dual",
    f"{_PREDISPATCH}._make_dual",
    f"{_PREDISPATCH}._unpack_dual",
    "torch.autograd.forward_ad._maybe_load_decompositions",
    "torch._C._functorch._unwrap_for_grad",
    "torch._C._functorch._wrap_for_grad",
    f"{_PREDISPATCH}._unwrap_for_grad",
    "torch._functorch.eager_transforms._autograd_grad",
    "torch._functorch.eager_transforms._set_tensor_requires_grad",
)
# What leaves each mode that is entered.
EXITS = {
    ENTER_AUTOCAST: "torch.amp.autocast_mode._exit_autocast",
    ENTER_INFERENCE: "torch.autograd.grad_mode._exit_inference_mode",
    ENTER_VMAP: f"{_PREDISPATCH}._vmap_decrement_nesting",
    ENTER_GRAD: "torch._C._functorch._grad_decrement_nesting",
    DISABLE_HOOKS: "torch._C._autograd._saved_tensors_hooks_enable",
    **{name: name.replace("increment", "decrement") for name in ENTER_JVP},
    **{name: name.replace("enter", "exit") for name in ENTER_DUAL},
}
# How the names of torch's functions begin that tell of a state, behind an underscore or not.
_ASKING = ("are_", "get_", "has_", "initial_seed", "is_", "seed")
# What enters, leaves and switches modes, and what is called within them.
OF_MODES = (*EXITS, *EXITS.values(), SDPA_BACKEND, SDPA_KERNEL, *_BATCHING, *_DIFFERENTIATING)


def listed_names() -> Iterator[tuple[str, bool]]:
    """Every function that Dynamo may leave in a graph, by its qualified name, with whether it is a binding."""
    # torch/_dynamo/trace_rules.py. Importing it is free where Dynamo is at work, and takes seconds elsewhere.
    from torch._dynamo import trace_rules

    yield from ((name, True) for name in trace_rules.torch_c_binding_in_graph_functions)
    yield from ((name, False) for name in trace_rules.torch_non_c_binding_in_graph_functions)


def load_function(name: str) -> Any:
    """What a qualified name of this module, or of Dynamo's lists, stands for; None if this release has no such."""
    from torch._dynamo import trace_rules

    return trace_rules.load_object(name)


# torch/backends/cuda/__init__.py, torch/backends/cudnn/__init__.py
_SWITCHES_OF_CUDA = frozenset(
    {"_set_cublas_allow_tf32", "_set_cudnn_allow_tf32", "_set_cudnn_benchmark", "_set_cudnn_deterministic"}
)


def is_usage_log(target: object) -> bool:
    """Whether a function is torch's own usage log, which computes nothing."""
    # torch/csrc/Module.cpp; models of torch.nn call it when they are traced.
    return target is torch._C._log_api_usage_once


def asks_by_name(name: str) -> bool:
    """Whether a function of torch, by its name, may tell of a state: of the process, or of what it is called with."""
    return name.lstrip("_").startswith(_ASKING)


def is_question(target: object) -> bool:
    """Whether a function tells of a state of torch or of a GPU, and does nothing else. Dynamo has the answer when it
    leaves the call in a graph.
    """
    if target is torch.cuda.get_device_capability:
        return True
    name = getattr(target, "__name__", "")
    return asks_by_name(name) and vars(torch._C).get(name) is target


def value_switched(target: object) -> bool | None:
    """What a switch is now that a function sets, if it decides how kernels of CUDA's libraries compute, and no more;
    None if it is none of these."""
    name = getattr(target, "__name__", "")
    if name not in _SWITCHES_OF_CUDA or vars(torch._C).get(name) is not target:
        return None
    return bool(vars(torch._C)[name.replace("_set_", "_get_", 1)]())


def question_named(name: str) -> Any:
    """The function of torch._C that has a name, if it tells of a state and does nothing else; None if there is none."""
    found = vars(torch._C).get(name)
    return found if found is not None and is_question(found) else None


def is_question_of_tensor(target: object) -> bool:
    """Whether a function tells how torch.vmap or torch.func.grad has wrapped a tensor, and does nothing else."""
    name = getattr(target, "__name__", "")
    return name.startswith("is_") and vars(torch._C._functorch).get(name) is target


def is_taken_for_constant(function: object) -> bool:
    """Whether Dynamo calls a function while it traces and keeps the result (torch.compiler.assume_constant_result)."""
    # torch/_dynamo/decorators.py: assume_constant_result.
    return bool(getattr(function, "_dynamo_marked_constant", False))
