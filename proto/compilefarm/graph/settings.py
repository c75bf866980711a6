"""The settings of torch's compilers as they stand in this process."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import torch

from compilefarm.core.dynamo_settings import DYNAMO, SYMBOLIC_SHAPES
from compilefarm.core.treatment import Treatment
from compilefarm.graph.tracing import not_faking
from compilefarm.torch_internals import settings as modules
from compilefarm.torch_internals.attention import choose_backend
from compilefarm.torch_internals.compiler_extensions import find_custom_backend_table, reserves_multiprocessors
from compilefarm.torch_internals.settings import defaults_of

_ENVIRONMENT_NAME = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["']""")
# Variables that decide only where things lie, what is kept for later, what is printed, or which compiler is started.
_HARMLESS_VARIABLES = frozenset(
    {
        "CC", "CUDACXX", "CUDA_HOME", "CXX", "ENABLE_AOT_AUTOGRAD_CACHE", "INDUCTOR_WRITE_MISSING_OPS",
        "TORCHINDUCTOR_AUTOGRAD_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE", "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
        "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_BUNDLE_TRITON_INTO_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
        "TORCHINDUCTOR_VEC_ISA_OK", "TORCHINDUCTOR_WORKER_START", "TORCH_COMPILE_DEBUG", "TORCH_TRACE",
    }
)  # fmt: skip


def values(config: ModuleType) -> dict[str, object]:
    """Every setting of torch._inductor.config or torch._functorch.config by dotted name, as it stands now."""
    found: dict[str, object] = config.get_config_copy()
    return found


@functools.cache
def defaults(config: ModuleType) -> Mapping[str, object]:
    """Every setting as it was when the module was imported; aliases of other settings included."""
    return defaults_of(config)


@functools.cache
def set_variables(config: ModuleType) -> frozenset[str]:
    """Environment variables that are set and that the module reads while it is imported.

    The defaults of most settings are computed from such variables, so that "differs from its default" says nothing
    about them then.
    """
    named = set(_ENVIRONMENT_NAME.findall(inspect.getsource(config))) - _HARMLESS_VARIABLES
    return frozenset(name for name in named if name in os.environ)


@functools.cache
def set_by(variables: frozenset[str], config: ModuleType) -> frozenset[str]:
    """The settings whose default is written with one of these variables beside it."""
    return frozenset(_assigned_from(variables, ast.parse(inspect.getsource(config)).body)) if variables else frozenset()


def _assigned_from(variables: frozenset[str], statements: Sequence[ast.stmt], *, family: str = "") -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield from _assigned_from(variables, statement.body, family=f"{family}{statement.name}.")
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            constants = {node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)}
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if not variables.isdisjoint(constants):
                yield from (f"{family}{target.id}" for target in targets if isinstance(target, ast.Name))


@functools.cache
def settle_attention_order() -> None:
    """Has torch decide in which order it tries backends of attention on this GPU, if it has not yet.

    It does so at the first attention of a process, and drops what was set before. Until then the order that torch tells
    (`torch_internals/attention.py`) is one that no attention goes by, and what is set does not stay.
    """
    # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: priority_order, check_prefer_cudnn_attention
    if not torch.cuda.is_available():
        return
    is_enabled = torch.backends.cuda.math_sdp_enabled()
    # With this one there is always a choice; where there is none torch raises.
    torch.backends.cuda.enable_math_sdp(True)
    try:
        with not_faking():
            given = torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")
            choose_backend(given, given, given)
    finally:
        torch.backends.cuda.enable_math_sdp(is_enabled)


def find_deciding_setting() -> str | None:
    """A setting of Dynamo that was changed, is read again while its graph is compiled, and is no part of a request."""
    for config, table in ((modules.DYNAMO, DYNAMO), (modules.SYMBOLIC_SHAPES, SYMBOLIC_SHAPES)):
        known = defaults(config)
        for name, (treatment, _) in table.items():
            if treatment is Treatment.BYPASS and name in known and getattr(config, name) != known[name]:
                return f"{config.__name__}.{name}"
    return None


def find_further_compiler_part() -> str | None:
    """What of the user's own this process has put beside Inductor for a processor or a GPU, or None."""
    table = find_custom_backend_table()
    if table is not None:
        return table
    if reserves_multiprocessors():
        return "sm_carveout"
    # torch/fx/experimental/proxy_tensor.py: _coor_enabled
    return "compile_on_one_rank" if getattr(torch.compiler.config, "compile_on_one_rank", False) else None
