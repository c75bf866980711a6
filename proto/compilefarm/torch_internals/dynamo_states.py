"""States of a process that Dynamo's traces depend on and that torch has no public names for."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
import torch._dynamo.config
from torch._dynamo import utils as _utils
from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr as _set_aside
from torch._functorch._aot_autograd import utils as _aot_autograd
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.nn.modules import module as _modules
from torch.utils import _device

from compilefarm.torch_internals.dynamo_guards import global_state

# Settings that say where Dynamo writes or what it logs.
_WITHOUT_EFFECT = frozenset({"debug_dir_root", "repro_after", "repro_level", "log_file_name", "verbose"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def configuration_of_dynamo() -> str:
    """A digest of Dynamo's settings, as far as they can be compared between processes."""
    settings = torch._dynamo.config.save_config_portable()  # torch/utils/_config_module.py
    text = "\n".join(
        f"{name}={_portable(value)}" for name, value in sorted(settings.items()) if name not in _WITHOUT_EFFECT
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def global_state_text() -> str:
    """What GLOBAL_STATE guards, as text."""
    return json.dumps(json.loads(global_state().__getstate__()), sort_keys=True)


def inference_mode() -> bool:
    """Whether tensors that are made now are inference tensors."""
    return bool(torch.is_inference_mode_enabled())


def default_device() -> Any:
    """What torch.set_default_device was called with; None if it was not."""
    return _device.CURRENT_DEVICE


def error_on_graph_break() -> bool:
    """Whether a graph break is an error for now (torch._dynamo.error_on_graph_break)."""
    return bool(_utils._get_error_on_graph_break())  # torch/_dynamo/utils.py


def function_modes() -> list[Any]:
    """Modes through which torch functions are called, also those that Dynamo has set aside for a while."""
    # Since 2.15 it does so before it traces, or asks who takes the place of a trace (torch/_dynamo/convert_frame.py).
    return [*torch.overrides._get_current_function_mode_stack(), *_set_aside.stack]


def functorch_levels() -> list[Any]:
    """Transforms of functorch that are under way."""
    return list(retrieve_all_functorch_interpreters())


def forward_mode_level() -> int:
    """The level of forward-mode differentiation; -1 outside."""
    return int(torch.autograd.forward_ad._current_level)


def saved_tensors_hooks() -> Any:
    """Hooks that are called for tensors that autograd saves; None if there are none."""
    return _aot_autograd.top_saved_tensors_hooks()


def global_module_hooks() -> list[Any]:
    """Hooks that every module calls."""
    names = (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
        "_global_buffer_registration_hooks",
        "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
    )
    return [hook for name in names for hook in getattr(_modules, name, {}).values()]


def _portable(value: Any) -> str:
    text = ",".join(sorted(map(repr, value))) if isinstance(value, (set, frozenset)) else repr(value)
    return _ADDRESS.sub("", text)
