"""The settings of torch's compilers as they stand in this process.

Beside `targets` this is the only module here that touches private names of torch.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import torch
import torch._dynamo.config
import torch.fx.experimental._config

from compilefarm.core.dynamo_settings import DYNAMO, SYMBOLIC_SHAPES
from compilefarm.core.treatment import Treatment
from compilefarm.graph.tracing import not_faking

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
    # torch/utils/_config_module.py: ConfigModule._config holds an entry for each setting.
    return {name: entry.default for name, entry in config._config.items()}


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

    It does so at the first attention of a process, and drops what was set before. Until then `attention_order` tells
    what no attention goes by, and what `set_attention_order` sets does not stay.
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
            torch._fused_sdp_choice(given, given, given)
    finally:
        torch.backends.cuda.enable_math_sdp(is_enabled)


def attention_order() -> list[int]:
    """In which order backends of attention are tried, by their numbers in torch.nn.attention.SDPBackend."""
    # torch/nn/attention/__init__.py: sdpa_kernel
    order: list[int] = torch._C._get_sdp_priority_order()
    return order


def set_attention_order(order: Sequence[int]) -> None:
    """Sets what `attention_order` tells."""
    torch._C._set_sdp_priority_order(list(order))


def find_deciding_setting() -> str | None:
    """A setting of Dynamo that was changed, is read again while its graph is compiled, and is no part of a request."""
    for config, table in ((torch._dynamo.config, DYNAMO), (torch.fx.experimental._config, SYMBOLIC_SHAPES)):
        for name, (treatment, _) in table.items():
            entry = config._config.get(name) if treatment is Treatment.BYPASS else None
            if entry is not None and getattr(config, name) != entry.default:
                return f"{config.__name__}.{name}"
    return None


def find_further_compiler_part() -> str | None:
    """What of the user's own this process has put beside Inductor for a processor or a GPU, or None."""
    # torch/_inductor/codegen/common.py: register_backend_for_device
    common = sys.modules.get("torch._inductor.codegen.common")
    for table in ("custom_backend_passes", "custom_backend_codegen_configs"):
        registered = getattr(common, table, {})
        if any(registered.get(device_type) is not None for device_type in ("cpu", "cuda")):
            return table
    # torch/_inductor/utils.py: get_num_sms
    if torch._C._get_sm_carveout_experimental() is not None:
        return "sm_carveout"
    # torch/fx/experimental/proxy_tensor.py: _coor_enabled
    return "compile_on_one_rank" if getattr(torch.compiler.config, "compile_on_one_rank", False) else None


def has_saved_tensors_hooks() -> bool:
    """Whether functions of the user's stand between a forward pass and the tensors that it saves."""
    # torch/_functorch/_aot_autograd/utils.py: top_saved_tensors_hooks
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
