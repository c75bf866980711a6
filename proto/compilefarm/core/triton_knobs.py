"""Triton's knobs (triton/knobs.py, 3.6 to 3.9).

They cannot be set again for one compile: Inductor compiles kernels in processes of its own. So those that decide
something are matched: a farm has them where its pods have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from compilefarm.core.treatment import Treatment

_MATCHED = {
    "decides the precision of arithmetic": (
        "language.default_fp_fusion", "language.force_disable_fp_fusion", "language.fp32_default",
        "compilation.fpsan_homomorphic_casts",
    ),
    "decides which machine code is made": (
        "nvidia.disable_ptxas_opt", "nvidia.mock_ptx_version", "nvidia.ptxas_options", "runtime.override_arch",
        "runtime.interpret",
    ),
    "adds checks to kernels": ("compilation.enable_asan", "compilation.instrumentation_mode", "runtime.debug"),
    "puts something of this process in place of what Triton compiles": (
        "compilation.override", "runtime.add_stages_inspection_hook", "runtime.jit_cache_hook",
    ),
    "decides what a kernel may refer to": ("compilation.allow_non_constexpr_globals",),
}  # fmt: skip
_WITHOUT_EFFECT = {
    "says where programs, headers and libraries lie, which are the worker's; torch sets some itself": (
        "build.cc", "build.cudacrt_path", "build.cudart_path", "build.impl", "nvidia.cuobjdump", "nvidia.libcuda_path",
        "nvidia.libdevice_path", "nvidia.nvdisasm", "nvidia.ptxas", "nvidia.ptxas_blackwell",
    ),
    "is about caches": (
        "cache.dir", "cache.dump_dir", "cache.home_dir", "cache.manager_class", "cache.override_dir",
        "cache.remote_manager_class", "compilation.always_compile", "compilation.store_binary_only",
        "redis.host", "redis.key_format", "redis.port", "autotuning.cache",
    ),
    "decides what is printed, dumped or reported, and which line of source an instruction names": (
        "autotuning.listener", "autotuning.print", "compilation.disable_line_info", "compilation.dump_ir",
        "compilation.dump_ir_extract_di_local_variables", "compilation.front_end_debugging", "compilation.listener",
        "compilation.use_ir_loc", "nvidia.dump_nvptx", "nvidia.dump_ptxas_log", "runtime.jit_post_compile_hook",
    ),
    "is for AMD's processors, which farms do not compile for": (
        "amd.buffer_ops_analyze_small_tensor_range", "amd.codegen_path", "amd.dump_amdgcn", "amd.dump_mir",
        "amd.libhip_path", "amd.scalarize_packed_fops", "amd.swap_mir", "amd.swap_mir_enable_misched",
        "amd.use_async_copy", "amd.use_block_pingpong", "amd.use_buffer_atomics", "amd.use_buffer_ops",
        "amd.use_coexec_scheduler", "amd.use_expert_scheduling", "amd.use_in_thread_transpose",
    ),
    "is the profiler's": (
        "proton.cupti_dir", "proton.cupti_lib_blackwell_dir", "proton.cupti_lib_dir", "proton.disable",
        "proton.enable_hw_trace", "proton.enable_nvtx", "proton.hsa_runtime_library", "proton.hsa_runtime_path",
        "proton.profile_buffer_size", "proton.profile_metric_buffer_size", "proton.rocprofiler_sdk_include_path",
        "proton.rocprofiler_sdk_lib_path", "proton.rocprofiler_sdk_library", "proton.roctracer_lib_path",
        "proton.roctracer_library", "proton.roctx_lib_path", "proton.roctx_library",
    ),
}  # fmt: skip

KNOBS: Mapping[str, tuple[Treatment, str]] = {
    **{name: (Treatment.MATCHED, reason) for reason, names in _MATCHED.items() for name in names},
    **{name: (Treatment.NO_EFFECT, reason) for reason, names in _WITHOUT_EFFECT.items() for name in names},
}
