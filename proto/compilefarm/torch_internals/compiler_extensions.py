"""What a process has put beside Inductor of its own."""

from __future__ import annotations

import sys

import torch


def find_custom_backend_table() -> str | None:
    """A table of Inductor with something of the user's own for a processor or a GPU; None if both are without."""
    # torch/_inductor/codegen/common.py: register_backend_for_device
    common = sys.modules.get("torch._inductor.codegen.common")
    for table in ("custom_backend_passes", "custom_backend_codegen_configs"):
        registered = getattr(common, table, {})
        if any(registered.get(device_type) is not None for device_type in ("cpu", "cuda")):
            return table
    return None


def reserves_multiprocessors() -> bool:
    """Whether this process keeps multiprocessors of a GPU from matrix products."""
    # torch/_inductor/utils.py: get_num_sms
    return torch._C._get_sm_carveout_experimental() is not None
