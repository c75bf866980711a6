"""What the sources that Inductor generates import and name (torch/_inductor/codegen/wrapper.py)."""

from __future__ import annotations

# Modules of torch that a wrapper imports as a whole.
MODULES_IMPORTED = frozenset({"torch._inductor.async_compile"})
# Of these the generators write only the names, and compute the modules.
IMPORTS_COMPUTED = frozenset(
    {
        ("torch._inductor.async_compile", "AsyncCompile"),
        ("torch._inductor.runtime.triton_heuristics", "end_graph"),
        ("torch._inductor.runtime.triton_heuristics", "start_graph"),
    }
)
# Enters a GPU (torch/_inductor/codegen/cuda/device_op_overrides.py).
DEVICE_GUARD = "torch.cuda._DeviceGuard"
