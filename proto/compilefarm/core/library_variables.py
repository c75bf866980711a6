"""Environment variables that torch's C++ and its libraries read: oneDNN, MKL, cuBLAS, cuDNN, OpenMP.

An artifact calls these libraries in the pod, and there they read the pod's variables, as they do under its own compile.
So a variable decides something of an artifact only where a worker calls them while it compiles: to trace a graph, to
fold constants, to measure kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compilefarm.core.treatment import Treatment

_MATCHED, _NO_EFFECT = Treatment.MATCHED, Treatment.NO_EFFECT
_CPU = frozenset({"cpu"})
_CUDA = frozenset({"cuda"})


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableGroup:
    """Variables with the same treatment for the same reason.

    Attributes:
        treatment: what is done with them.
        read_in: the file of torch that reads them, or the library.
        reason: why they have no effect, or what they decide.
        names: their names.
        devices: device types of the jobs for which they decide something.
    """

    treatment: Treatment
    read_in: str
    reason: str
    names: str
    devices: frozenset[str] = _CPU | _CUDA

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.split())


LIBRARY_VARIABLES = (
    VariableGroup(
        treatment=_MATCHED, read_in="MKL and oneDNN, when they are loaded; aten/src/ATen/native/mkldnn/Matmul.cpp",
        reason="decides how constants are folded, and which kernel wins a measurement",
        names="""DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA MKL_CBWR MKL_ENABLE_INSTRUCTIONS ONEDNN_DEFAULT_FPMATH_MODE
            ONEDNN_MAX_CPU_ISA TORCH_MKLDNN_MATMUL_MIN_DIM TORCH_MKLDNN_MATMUL_MIN_SIZE""",
        devices=_CPU,
    ),
    VariableGroup(
        treatment=_MATCHED, read_in="aten/src/ATen/native/Linear.cpp",
        reason="decides which product a linear layer of three dimensions is, while it is traced",
        names="TORCH_LINEAR_FLATTEN_3D",
    ),
    VariableGroup(
        treatment=_MATCHED, read_in="torch/csrc/autograd/generated: RegisterFunctionalization",
        reason="decides from what shapes of views follow, while a graph is traced",
        names="TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE",
    ),
    VariableGroup(
        treatment=_MATCHED, read_in="cuBLAS and cuDNN, at every product",
        reason="decides in which precision products are made, and with it what wins a measurement",
        names="""CUBLAS_EMULATE_DOUBLE_PRECISION CUBLAS_EMULATE_SINGLE_PRECISION CUBLAS_EMULATION_STRATEGY
            CUBLAS_EMULATION_SPECIAL_VALUES_SUPPORT_MASK CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT
            NVIDIA_TF32_OVERRIDE""",
        devices=_CUDA,
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/native/transformers/cuda/sdp_utils.cpp",
        reason="is seen as the order of attention, which is in the key", names="TORCH_CUDNN_SDPA_DEPRIORITIZED",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/Context.h",
        reason="is seen as the precision of products, which is in the key", names="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="torch/_inductor/fx_passes/numeric_utils.py, cuBLAS",
        reason="torch sets it while Inductor is imported; products are made in the pod, with the pod's",
        names="CUBLAS_WORKSPACE_CONFIG",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/Context.cpp, aten/src/ATen/cuda, cuBLAS",
        reason="decides which library or kernel makes a product or a decomposition of a matrix, in the pod",
        names="""CUBLASLT_DISABLE_CPU_INSTRUCTIONS_MASK CUBLASLT_HEURISTICS_CACHE_CAPACITY CUBLASLT_HEURISTICS_LUT_FILE
            CUBLASLT_WORKSPACE_SIZE CUBLAS_AUTOTUNING_CACHE_CAPACITY CUBLAS_FORCE_XMMA_KERNEL_INIT
            DISABLE_ADDMM_CUDA_LT TORCH_BLAS_PREFER_CUBLASLT TORCH_BLAS_PREFER_HIPBLASLT
            TORCH_CUBLASLT_UNIFIED_WORKSPACE
            TORCH_CUBLAS_WORKSPACE_CACHE TORCH_LINALG_PREFER_CUSOLVER TORCH_LINALG_PREFER_HIPSOLVER""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/cuda/tunable",
        reason="has the pod measure which kernel makes a product; a compile takes no product of TunableOp",
        names="""PYTORCH_TUNABLEOP_BLAS_LOG PYTORCH_TUNABLEOP_CUBLASLT_REQUESTED_ALGO_COUNT PYTORCH_TUNABLEOP_ENABLED
            PYTORCH_TUNABLEOP_FILENAME PYTORCH_TUNABLEOP_HIPBLASLT_ENABLED PYTORCH_TUNABLEOP_ICACHE_FLUSH_ENABLED
            PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS PYTORCH_TUNABLEOP_MAX_TUNING_ITERATIONS
            PYTORCH_TUNABLEOP_MAX_WARMUP_DURATION_MS PYTORCH_TUNABLEOP_MAX_WARMUP_ITERATIONS
            PYTORCH_TUNABLEOP_NUMERICAL_CHECK PYTORCH_TUNABLEOP_RECORD_UNTUNED PYTORCH_TUNABLEOP_ROCBLAS_ENABLED
            PYTORCH_TUNABLEOP_ROTATING_BUFFER_SIZE PYTORCH_TUNABLEOP_TUNING PYTORCH_TUNABLEOP_UNTUNED_FILENAME
            PYTORCH_TUNABLEOP_VERBOSE PYTORCH_TUNABLEOP_VERBOSE_FILENAME PYTORCH_TUNABLEOP_WILDCARD_FALLBACK""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/native/cudnn, cuDNN and its frontend",
        reason="decides which kernel of cuDNN runs, or what it reports, in the pod; cuDNN's version is in the key",
        names="""CUDNN_ERRATA_JSON_FILE CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT CUDNN_FRONTEND_LOG_FILE
            CUDNN_FRONTEND_LOG_INFO CUDNN_RESCALE_THRESHOLD TORCH_CUDNN_SDPA_AVOID_RECOMPILE
            TORCH_CUDNN_SDPA_CACHE_DEBUG TORCH_CUDNN_USE_HEURISTIC_MODE_B TORCH_CUDNN_V8_API_DEBUG
            TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/native/transformers/cuda/sdp_utils.cpp",
        reason="is about attention of nested tensors, which no request holds",
        names="TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="OpenMP and MKL",
        reason="how many threads there are is in the key; how work is spread over them is decided at run time, in the"
        " pod",
        names="""GOMP_CPU_AFFINITY GOMP_SPINCOUNT KMP_AFFINITY KMP_BLOCKTIME KMP_DUPLICATE_LIB_OK
            MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC MKL_NUM_STRIPES MKL_NUM_THREADS OMP_CANCELLATION OMP_DYNAMIC
            OMP_MAX_ACTIVE_LEVELS OMP_NESTED OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_STACKSIZE
            OMP_THREAD_LIMIT OMP_WAIT_POLICY""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="MKL, oneDNN and what torch allocates with",
        reason="decides where memory comes from and what is kept of it",
        names="""DNNL_GRAPH_COMPILED_PARTITION_CACHE_CAPACITY DNNL_PRIMITIVE_CACHE_CAPACITY LRU_CACHE_CAPACITY
            MKL_DISABLE_FAST_MM MKL_FAST_MEMORY_LIMIT ONEDNN_CACHE_CONTEXT_UNSAFE ONEDNN_PRIMITIVE_CACHE_CAPACITY
            PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
            PYTORCH_NO_HIP_MEMORY_CACHING TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="c10, torch/csrc, MKL, oneDNN, cuBLAS",
        reason="decides what is logged, checked, shown of an error, or done when a process ends",
        names="""CUBLASLT_LOG_FILE CUBLASLT_LOG_LEVEL CUBLASLT_LOG_MASK CUBLAS_LOGDEST_DBG CUBLAS_LOGINFO_DBG
            CUDNN_LOGDEST_DBG CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG DISABLE_CUPTI_LAZY_REINIT DNNL_VERBOSE MKL_VERBOSE
            MKL_VERBOSE_OUTPUT_FILE ONEDNN_VERBOSE PYTORCH_API_USAGE_STDERR PYTORCH_CUDA_DSA_STACKTRACING PYTORCH_TEST
            PYTORCH_USE_CUDA_DSA TORCH_ADDR2LINE_BINARY TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT TORCH_CPP_LOG_LEVEL
            TORCH_CUSTOM_TERMINATE TORCH_DISABLE_ADDR2LINE TORCH_DISABLE_DEADLOCK_DETECTION
            TORCH_PROFILER_ENABLE_COLLECTIVE_PROFILING TORCH_SHOW_CPP_STACKTRACES TORCH_SHOW_DISPATCH_TRACE
            TORCH_SYMBOLIZE_MODE TORCH_VITAL""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="torch/csrc/jit",
        reason="is about TorchScript, whose functions no request holds",
        names="""PYTORCH_FUSION_DEBUG PYTORCH_JIT_ENABLE_LARGE_SOURCE_LOCATION PYTORCH_JIT_LOG_LEVEL
            PYTORCH_JIT_OPT_LIMIT PYTORCH_JIT_TYPE_VERBOSITY PYTORCH_TENSOREXPR PYTORCH_TENSOREXPR_DONT_FUSE
            PYTORCH_TENSOREXPR_FALLBACK PYTORCH_TENSOREXPR_RANDOM_TRANSFORM_SEED TORCH_JIT_DISABLE_NEW_EXECUTOR""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen/native/cuda, torch/_native",
        reason="is about kernels that eager has, or compiles for itself, in the pod",
        names="""PYTORCH_KERNEL_CACHE_PATH PYTORCH_SUM_INNER_TREE TORCH_DISABLE_NATIVE_AOT TORCH_DISABLE_NATIVE_JIT
            TORCH_NATIVE_SKIP_VERSION_CHECK TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN HELION_BACKEND
            USE_LARGE_PARTITION_KERNEL USE_PYTORCH_KERNEL_CACHE""",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="torch/backends/cudnn/__init__.py",
        reason="decides whether another cuDNN than torch's is refused; its version is in the key",
        names="PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="aten/src/ATen: ROCm", reason="belongs to processors that the farm does not"
        " compile for",
        names="PYTORCH_MIOPEN_SUGGEST_NHWC PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM TORCH_ROCM_FA_PREFER_CK",
    ),
    VariableGroup(
        treatment=_NO_EFFECT, read_in="torch/csrc/distributed, NCCL, Gloo, NVSHMEM",
        reason="is about how collectives are run, which graphs call as they are",
        names="""TORCH_DISTRIBUTED_DEBUG TORCH_FR_BUFFER_SIZE TORCH_FR_CPP_STACK TORCH_FR_DUMP_DYNAMIC_FILE_NAME
            TORCH_FR_DUMP_ON_TIMEOUT TORCH_FR_DUMP_TEMP_FILE TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC TORCH_GLOO_LAZY_INIT
            TORCH_INCLUDE_ONLY_ACTIVE TORCH_INCLUDE_STACK_TRACE TORCH_NCCL2_RECONFIGURE_SHRINK_GROW
            TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BCAST_UNIQUEID
            TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE
            TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DESYNC_DEBUG
            TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING
            TORCH_NCCL_EXTRA_DUMP_ON_EXEC TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
            TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_NAN_CHECK TORCH_NCCL_NONBLOCKING_TIMEOUT
            TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT TORCH_NCCL_RETHROW_CUDA_ERRORS
            TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TORCH_NCCL_TEARDOWN_ON_TIMEOUT
            TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_USE_COMM_NONBLOCKING
            TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC TORCH_SYMMMEM
            TORCH_SYMMMEM_NBLOCKS TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES TORCH_SYMM_MEM_DISABLE_MULTICAST""",
    ),
)  # fmt: skip
