"""Environment variables that torch reads while it compiles, beside those that become settings of its config modules.

What its C++ and the libraries below that read is listed in `library_variables`.

Those of `torch._inductor.config` and its like are seen as the values that they gave (`graph/options.py`), those of
Triton as its knobs (`graph/knobs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compilefarm.core.library_variables import LIBRARY_VARIABLES
from compilefarm.core.treatment import Treatment


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable.

    Attributes:
        name: its name.
        read_in: the file of torch that reads it, or the library.
        treatment: what is done with it.
        reason: why it has no effect, or what it decides.
        devices: device types of the jobs for which it decides something.
    """

    name: str
    read_in: str
    treatment: Treatment
    reason: str
    devices: frozenset[str] = frozenset({"cpu", "cuda"})


_CPU = frozenset({"cpu"})
_CUDA = frozenset({"cuda"})


def _all(
    treatment: Treatment, read_in: str, reason: str, *names: str, devices: frozenset[str] = _CPU | _CUDA
) -> list[Variable]:
    return [Variable(name=name, read_in=read_in, treatment=treatment, reason=reason, devices=devices) for name in names]


VARIABLES: Mapping[str, Variable] = {
    variable.name: variable
    for variable in (
        *(
            variable
            for group in LIBRARY_VARIABLES
            for variable in _all(group.treatment, group.read_in, group.reason, *group, devices=group.devices)
        ),
        *_all(
            Treatment.MATCHED, "torch/_inductor/cpu_vec_isa.py, aten/src/ATen/native/DispatchStub.cpp",
            "decides which vector instructions kernels use, and with them in which order they add",
            "ATEN_CPU_CAPABILITY", devices=_CPU,
        ),
        *_all(
            Treatment.MATCHED, "torch/_inductor/template_heuristics/triton.py",
            "has fewer configurations of attention measured", "CI", devices=_CUDA,
        ),
        *_all(
            Treatment.MATCHED, "torch/_inductor/cpp_builder.py",
            "compiles C++ without optimisation", "TORCHINDUCTOR_DEBUG_COMPILE", devices=_CPU,
        ),
        *_all(
            Treatment.MATCHED, "torch/_inductor/config_comms.py", "decides the order of collectives",
            "PYTORCH_REORDER_COLLECTIVES_LIMIT", "PYTORCH_SINK_WAITS_LIMIT",
        ),
        *_all(
            Treatment.MATCHED, "torch/_inductor/pattern_matcher.py, torch/_inductor/compiler_bisector.py",
            "switches passes of the compiler off", "TORCHINDUCTOR_PATTERN_MATCH_BACKEND", "TORCH_BISECT_BACKEND",
            "TORCH_BISECT_MAX", "TORCH_BISECT_SUBSYSTEM",
        ),
        *_all(
            Treatment.MATCHED, "Triton's compiler, in C++ (triton._C.libtriton.get_cache_invalidating_env_vars)",
            "switches passes of the compiler off or on", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5",
            "LLVM_PASS_PLUGIN_PATH", "TRITON_CONSAN_INIT_ALLOCATIONS", "TRITON_ENABLE_EXPERIMENTAL_CONSAN",
            "TRITON_PLUGIN_PATHS", devices=_CUDA,
        ),
        *_all(
            Treatment.NO_EFFECT, "triton/knobs.py", "is seen as the knob that it sets", "TRITON_INTERPRET",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor/runtime/compile_tasks.py",
            "torch sets them itself; assembler and library of functions are the worker's",
            "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/__init__.py, torch/fx/passes/_tensorify_python_scalars.py",
            "decides before the graph is there; floats that Dynamo made tensors of are seen in it",
            "TENSORIFY_PYTHON_SCALARS",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor/cpp_builder.py, torch/_inductor/codegen",
            "says where compilers, headers and libraries lie, which are the worker's",
            "CONDA_EXE", "CONDA_PREFIX", "CPLUS_INCLUDE_PATH", "CUDACXX", "CUDA_HOME", "CXX", "LD_LIBRARY_PATH",
            "LEVEL_ZERO_V1_SDK_PATH", "OMP_PREFIX", "ONEAPI_ROOT", "PATH", "TORCH_CUDA_ARCH_LIST",
            "TORCH_INDUCTOR_INSTALL_GXX", "TORCHINDUCTOR_DEBUG_SYMBOL", "TORCH_CUSTOM_PYTHONPATH",
            "ProgramFiles", "WINDOWS_CUDA_HOME",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor, torch/fx", "decides what is printed, logged, kept or dumped",
            "FX_GRAPH_SHOW_DEVICE", "FX_GRAPH_SHOW_META", "FX_GRAPH_SHOW_STRIDE", "INDUCTOR_TEST_DISABLE_FRESH_CACHE",
            "INDUCTOR_WRITE_SCHEDULER_GRAPH", "PYTORCH_MATCHER_LOGLEVEL", "TORCHDYNAMO_EXTENDED_ADVICE",
            "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_CONV_LOGGING_FILE", "TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE",
            "TORCHINDUCTOR_DISABLE_MULTI_KERNEL_CACHE", "TORCHINDUCTOR_DUMP_LAUNCH_PARAMS",
            "TORCHINDUCTOR_KERNELS_TO_DUMP",
            "TORCHINDUCTOR_DUMP_LAUNCH_TENSORS", "TORCHINDUCTOR_MM_LOGGING_FILE", "TORCHINDUCTOR_PATTERN_MATCH_DEBUG",
            "TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_PORT", "TORCHINDUCTOR_REDIS_URL",
            "TORCHINDUCTOR_WRITE_MISSING_OPS", "TORCH_COMPILE_DEBUG", "TORCH_FAKE_TENSOR_DEBUG", "TRITON_CACHE_DIR",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor/async_compile.py, torch/_inductor/autotune_process.py",
            "decides which processes compile and measure",
            "TORCHINDUCTOR_AUTOTUNE_POOL_INACTIVITY_TIMEOUT", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_TNT_IN_USE",
            "TORCH_WARM_POOL",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor/codegen: AOTInductor, Halide, ROCm, XPU, FlyDSL",
            "belongs to backends that the farm does not run",
            "AOTI_RUNTIME_CHECK_INPUTS", "FLYDSL_GPU_ARCH", "FLYDSL_RUNTIME_CACHE_DIR", "HALIDE_INCLUDE", "HALIDE_LIB",
            "HALIDE_REPRO", "HSA_OVERRIDE_GFX_VERSION", "PYTORCH_ROCM_ARCH", "TORCHINDUCTOR_XPU_KERNEL_FORMAT",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/fx", "is read before Dynamo hands over a graph, or by other passes than its",
            "FX_PATCH_GETITEM", "PYTORCH_JIT", "TORCH_COMPILE_BACKEND", "_SPLITTER_MERGE_OVERLAPPING_FUSIONS",
        ),
        *_all(
            Treatment.NO_EFFECT, "torch/_inductor/codecache.py",
            "hands an address from a process to a library within it",
            "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
        ),
    )
}  # fmt: skip
# What a farm's own variables have to reach its children by.
MATCHED_NAMES = tuple(sorted(name for name, each in VARIABLES.items() if each.treatment is Treatment.MATCHED))


def matched_variables(environment: Mapping[str, str], *, device_type: str) -> list[str]:
    """Returns the variables that decide something for jobs on such devices and are set, as "NAME=value", sorted.

    Args:
        environment: the variables of the process.
        device_type: "cpu" or "cuda".
    """
    return [
        f"{name}={environment[name]}".encode(errors="backslashreplace").decode()
        for name in MATCHED_NAMES
        if environment.get(name) and device_type in VARIABLES[name].devices
    ]
