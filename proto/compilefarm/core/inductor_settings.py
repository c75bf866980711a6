"""The class of each setting of torch._inductor.config in requests: torch 2.11 to 2.15."""

from __future__ import annotations

from compilefarm.core.compiler_settings import (
    Boolean,
    CompilerSettings,
    Integer,
    Optional,
    Real,
    SettingType,
    Word,
    Words,
    by_reason,
    names,
)

# No setting of this kind puts a text into source: each chooses between ways that Inductor knows.
_BOOLEANS = names("""
    aggressive_fusion align_random_eager alignment_asserts alignment_asserts_inputs allow_buffer_reuse
    always_keep_tensor_constants apply_gumbel_max_trick assume_aligned_inputs
    assume_unaligned_fallback_output auto_chunker.enable autotune_cudagraph_benchmarking autotune_fallback_to_aten
    autotune_in_subproc autotune_multi_device b2b_gemm_pass batch_fusion batch_invariant benchmark_combo_kernel
    benchmark_epilogue_fusion benchmark_fusion benchmark_harness benchmark_template_fusion bmm_shared_a
    bw_outputs_user_visible cache_sdpa_constraint combo_kernel_autotune_grouping
    combo_kernel_compile_time_autotune combo_kernel_foreach_dynamic_shapes combo_kernel_per_subkernel_blocks
    combo_kernels combo_kernels_pointwise_only comprehensive_padding compute_all_bounds constant_and_index_propagation
    conv_1x1_as_mm coordinate_descent_check_all_directions coordinate_descent_tuning cpp.dynamic_threads
    cpp.enable_concat_linear cpp.enable_grouped_gemm_template cpp.enable_kernel_context_guard cpp.enable_loop_tail_vec
    cpp.enable_tiling_heuristics cpp.enable_unsafe_math_opt_flag cpp.fallback_scatter_reduce_sum
    cpp.force_inline_kernel cpp.no_redundant_loops cpp.use_constexpr_for_int_array cpp.use_decompose_tanh
    cpp.use_small_dequant_buffer cpp.weight_prepack dce decompose_mem_bound_mm delay_realize_cheap_outputs
    deterministic disable_cpp_codegen disable_padding_cpu dynamic_scale_rblock eager_numerics.disable_ftz
    eager_numerics.division_rounding eager_numerics.use_pytorch_libdevice efficient_conv_bn_eval_fx_passes
    emulate_precision_casts emulate_precision_casts_on_saved_tensors enable_auto_functionalized_v2
    enable_autograd_for_aot enable_linear_binary_folding epilogue_fusion epilogue_fusion_first
    epilogue_fusion_user_defined_triton_kernel epilogue_fusion_with_atomic_add expand_dimension_for_pointwise_nodes
    fallback_by_default fallback_embedding_bag_byte_unpack fallback_random force_fuse_int_mm_with_mul
    force_layout_optimization force_pointwise_cat force_same_precision force_shape_pad
    freezing_discard_parameters graph_partition group_fusion implicit_fallbacks incremental_autotune inplace_buffers
    inplace_padding joint_graph_constant_folding keep_addmm_fused_for_half_dtypes keep_output_stride
    layout_optimization loop_index_inversion_in_fusion loop_ordering_after_fusion loop_reindexing_after_fusion
    max_autotune max_autotune_allow_flexible_layouts max_autotune_gemm max_autotune_pointwise
    max_autotune_prune_choices_based_on_shared_mem memory_planning nan_asserts online_softmax
    optimize_scatter_upon_const_tensor pad_channels_last pad_dynamic_shapes pad_outputs partitioned_scatter_enabled
    partitioned_scatter_force pattern_matcher permute_fusion pick_loop_orders pipeline_max_autotune_gemm
    prologue_fusion reorder_for_compute_comm_overlap reorder_for_locality reorder_for_locality_in_training
    reorder_for_peak_memory runtime_estimations_mms_benchmark selective_decompose shape_padding
    split_cat_fx_passes split_reductions static_launch_user_defined_triton_kernels static_weight_shapes
    strict_output_strides strict_signed_zero strict_static_cuda_launcher strict_static_triton_launcher
    triton.autotune_cublasLt triton.autotune_pointwise triton.autotune_with_sample_inputs
    triton.coalesce_tiling_analysis triton.codegen_upcast_to_fp32 triton.cudagraph_skip_dynamic_graphs
    triton.cudagraph_support_input_mutation triton.cudagraphs triton.cooperative_reductions triton.decompose_sort_ops
    triton.dense_indexing triton.divisible_by_16 triton.dynamic_disable_pipelining triton.emit_pointer_range_32
    triton.enable_flex_tdm triton.enable_host_side_tma triton.enable_pdl triton.enable_persistent_tma_matmul
    triton.enable_template_autows triton.enable_template_tma_store triton.enable_tma_load_for_template_epilogue
    triton.force_cooperative_reductions triton.mix_order_reduction triton.mix_order_reduction_allow_multi_stages
    triton.mix_order_reduction_autotune_split_size triton.mix_order_reduction_non_strict_mode triton.native_matmul
    triton.nested_reduction triton.persistent_reductions triton.prefer_nd_tiling
    triton.reorder_for_reducing_graph_partitions triton.scalar_accumulators triton.skip_l1_cache triton.tile_reductions
    triton.tiling_prevents_pointwise_fusion triton.tiling_prevents_reduction_fusion
    triton.transpose_discontiguous_tensor_descriptor triton.unique_kernel_names triton.unique_user_kernel_names
    triton.use_block_ptr triton.use_tensor_descriptor use_dce use_experimental_benchmarker use_fast_math
    use_fast_triton_launcher use_joint_graph_passes use_launch_metadata_schema use_mixed_mm use_post_grad_passes
    use_pre_grad_passes use_rand4x use_static_cuda_launcher use_static_triton_launcher use_torch_profiler_benchmarker
    var_std_reduction_dedup write_are_deterministic_algorithms_enabled _use_fp64_for_unbacked_floats
""")
_COUNTS = names("""
    auto_chunker.amplify_ratio_threshold autotune_cudagraph_benchmarking_iters combo_kernel_allow_mixed_sizes
    combo_kernel_max_distance combo_kernel_max_num_args combo_kernel_max_num_nodes combo_kernels_autotune
    coordinate_descent_search_radius cpp.gemm_max_k_slices cpp.max_horizontal_fusion_size cpp.min_chunk_size
    inductor_default_autotune_rep inductor_default_autotune_warmup kernel_name_max_ops max_complex_pointwise_cat_inputs
    max_epilogue_benchmarked_choices max_fusion_buffer_group_pairwise_attempts max_fusion_size max_pointwise_cat_inputs
    max_template_fusion_benchmarked_choices min_num_split padding_alignment_bytes partitioned_scatter_max_partitions
    partitioned_scatter_min_partitions realize_cpu_acc_reads_threshold realize_cpu_opcount_threshold
    realize_opusers_threshold realize_reads_threshold score_fusion_memory_threshold
    size_threshold_for_succ_based_strategy triton.cudagraph_min_partition_size triton.decompose_k_threshold
    triton.min_split_scan_rblock triton.mix_order_reduction_initial_xblock triton.mix_order_reduction_max_reads
    triton.num_decompose_k_splits triton.spill_threshold unroll_reductions_threshold
""")
_OPTIONAL_COUNTS = names("""
    auto_chunker.num_chunk max_fusion_unique_io_buffers realize_acc_reads_threshold realize_opcount_threshold
    reorder_prefetch_limit triton.mix_order_reduction_split_size
""")
_SIZES = names("""
    auto_chunker.output_size_threshold cpp.use_two_step_variance_threshold padding_stride_threshold
    partitioned_scatter_min_index_size partitioned_scatter_non_model_floor_bytes small_memory_access_threshold
    triton.use_two_step_variance_min_numel triton.use_two_step_variance_threshold unbacked_symint_fallback
""")
_REALS = names("""
    combo_kernel_peak_memory_pct_threshold cpu_gpu_bw partitioned_scatter_memory_budget
    partitioned_scatter_min_contention_ratio triton.cudagraph_partition_memory_budget
""")
_OPTIONAL_REALS = names("""
    combo_kernel_peak_memory_increase_gb fusion_memory_timeline_peak_memory_increase_gb
    fusion_memory_timeline_peak_memory_pct_threshold inter_node_bw intra_node_bw
""")
_KERNEL_NAMES = Word(words=frozenset(names("torch original_aten inductor_node")))
_SEARCH_SPACE = Word(words=frozenset(names("DEFAULT EXHAUSTIVE")))
# Others would need libraries and compilers that a farm has not: CUTLASS, CK, ROCm's and NVIDIA's own.
_GEMM_BACKENDS = Words(words=frozenset(names("ATEN TRITON CPP")))
_CONV_BACKENDS = Words(words=frozenset(names("ATEN TRITON")))

_ALLOWED: dict[str, SettingType] = {
    **dict.fromkeys(_BOOLEANS, Boolean()),
    **dict.fromkeys(_COUNTS, Integer(low=0, high=1 << 16)),
    **dict.fromkeys(_OPTIONAL_COUNTS, Optional(type=Integer(low=0, high=1 << 16))),
    **dict.fromkeys(_SIZES, Integer(low=0, high=1 << 48)),
    **dict.fromkeys(_REALS, Real(low=0, high=1e9)),
    **dict.fromkeys(_OPTIONAL_REALS, Optional(type=Real(low=0, high=1e9))),
    "realize_acc_reads_size_threshold": Optional(type=Integer(low=0, high=1 << 48)),
    "cpp.descriptive_names": _KERNEL_NAMES,
    "cpp.enable_floating_point_contract_flag": Word(words=frozenset(names("off on fast"))),
    "cpp.simdlen": Optional(type=Integer(low=0, high=4096)),
    "max_autotune_conv_backends": _CONV_BACKENDS,
    "max_autotune_conv_bwd_input_backends": _CONV_BACKENDS,
    "max_autotune_conv_bwd_weight_backends": _CONV_BACKENDS,
    "max_autotune_flex_search_space": _SEARCH_SPACE,
    "max_autotune_gemm_backends": _GEMM_BACKENDS,
    "max_autotune_gemm_search_space": _SEARCH_SPACE,
    "memory_pool": Word(words=frozenset(names("none intermediates outputs combined"))),
    "mixed_mm_choice": Word(words=frozenset(names("default triton aten heuristic"))),
    "numerics": Word(words=frozenset(names("default strict_pointwise strict_reduction strict"))),
    "pre_grad_pass_timing": Word(words=frozenset(names("early late default"))),
    "triton.descriptive_names": _KERNEL_NAMES,
    "triton.max_tiles": Optional(type=Integer(low=1, high=3)),
    "triton_kernel_default_layout_constraint": Word(words=frozenset(names("needs_fixed_stride_order flexible_layout"))),
}

_REFUSED = by_reason(
    {
        "it has another compiler, or another kind of program, than those of a farm": """
            aot_inductor. aot_inductor_mode. cpp_wrapper cpp_wrapper_build_separate cpu_backend cuda. cuda_backend
            cutedsl_enable_autotuning cutlass. flydsl_enable_autotuning fx_wrapper mtia. nvgemm_max_profiling_configs
            nvgemm_pdl nvgemm_supplement_configs nvgemm_swap_ab rocm. triton.enable_tlx_templates triton.tlx_mode
            is_predispatch
        """,
        # torch/_functorch/_aot_autograd/autograd_cache.py: check_cacheable. Pods mark the inputs that are to be frozen.
        "torch saves no program that was made with it": "freezing",
        "it has code run on the way that is not looked at before": "triton.autotune_at_compile_time",
        # torch/_inductor/codegen/multi_kernel.py
        "each process would measure kernels and choose, at its first call": "triton.multi_kernel",
        # torch/_inductor/codegen/cpp_flex_attention_template.py: as many buffers, and torch's number of threads.
        "kernels have memory for so many threads, and are run by others": "cpp.threads",
        "it changes what CUDA graphs are in a way that farms do not know": """
            cudagraph_policy cudagraph_unsafe_unbacked_ops triton.cudagraph_or_error triton.cudagraph_trees
        """,
        "it names functions, files, or flags": """
            add_pre_grad_passes autoheuristic_collect autoheuristic_collect. autoheuristic_use autoheuristic_use.
            autotune_lookup_table bucket_all_gathers_fx_bucket_size_determinator
            bucket_all_reduces_fx_bucket_size_determinator bucket_reduce_scatters_fx_bucket_size_determinator cpp.march
            cpp.gemm_cache_blocking cpp.gemm_thread_factors custom_partitioner_fn custom_should_partition_ops
            disabled_passes estimate_op_runtime external_matmul inductor_choices_class joint_custom_post_pass
            joint_custom_pre_pass lookup_table. multi_kernel_hints post_grad_custom_post_pass post_grad_custom_pre_pass
            post_grad_fusion_options pre_grad_custom_pass pre_grad_fusion_options remove_pre_grad_passes
            reorder_for_compute_comm_overlap_passes run_jit_post_compile_hook _fuse_ddp_communication_passes
            _post_fusion_custom_pass _pre_fusion_custom_pass
        """,
        "it takes away what keeps a program within its tensors, or what it checks": """
            assert_indirect_indexing assume_32bit_indexing can_inplace_pad_graph_input do_not_emit_runtime_assertions
            scalar_asserts size_asserts
            triton_disable_device_detection
            unsafe_ignore_unsupported_triton_autotune_args unsafe_skip_cache_dynamic_shape_guards
            unsafe_skip_scalar_range_asserts
        """,
        "it is for programs of several processes": """
            _collective. _fuse_ddp_bucket_size _fuse_ddp_communication _micro_pipeline_tp
            aten_distributed_optimizations. bucket_all_gathers_bucket_mode bucket_all_gathers_fx bucket_all_reduces_fx
            bucket_reduce_scatters_bucket_mode bucket_reduce_scatters_fx collective_benchmark_nruns
            collective_benchmark_timeout decompose_shard_dim_alltoall dedup_reduce_scatters
            distributed_max_autotune_gemm min_overlap_ratio
        """,
        "it is for finding faults of Inductor": """
            always_complex_memory_overlap_TESTING_ONLY annotate_training benchmark_kernel
            check_stack_no_cycles_TESTING_ONLY comment_origin cpp.enable_kernel_profile
            cpp.inject_log1p_bug_TESTING_ONLY cpp.inject_relu_bug_TESTING_ONLY debug_fusion debug_index_asserts
            debug_ir_traceback force_disable_cudagraph_TESTING_ONLY fx_passes_numeric_check generate_intermediate_hooks
            keep_static_cubin_raw profiler_mark_wrapper_call runtime_triton_nan_asserts sleep_sec_TESTING_ONLY
            test_configs. triton.debug_sync_graph triton.debug_sync_kernel
            triton.disallow_failing_autotune_kernels_TESTING_ONLY triton.inject_relu_bug_TESTING_ONLY
            triton.store_cubin warn_mix_layout wrap_inductor_compiled_regions _raise_error_for_testing
        """,
        "torch computes others from it when it is imported": """
            _realize_acc_reads_threshold_default _realize_opcount_threshold_default
        """,
        "the worker sets it": "unsafe_marked_cacheable_functions",
    }
)  # fmt: skip

_WITHOUT_EFFECT = by_reason(
    {
        # torch/_inductor/codecache.py writes to it itself, whenever it packages a model.
        "it is kept beside packages of other kinds": "aot_inductor.metadata",
        # Read for other devices, and where cpu_backend or cuda_backend lead to torch/_inductor/codegen/halide.py.
        "it is about back ends and devices that no request has": "halide. tpu_backend xpu. xpu_backend",
        "it says what is kept for a later compile, and where": """
            _cache_config_ignore_prefix _save_config_ignore autotune_local_cache autotune_remote_cache
            bundle_triton_into_fx_graph_cache bundled_autotune_remote_cache cpp_cache_precompile_headers
            enable_caching_generated_triton_templates force_disable_caches fx_graph_cache fx_graph_remote_cache
            global_cache_dir non_blocking_remote_cache_write remote_gemm_autotune_cache search_autotune_cache
        """,
        "it is about the processes that compile": """
            compile_threads compile_worker_mode compile_worker_wait_timeout compile_worker_watchdog_interval_seconds
            file_lock_timeout max_autotune_subproc_graceful_timeout_seconds max_autotune_subproc_result_timeout_seconds
            max_autotune_subproc_terminate_timeout_seconds precompilation_timeout_seconds quiesce_async_compile_pool
            quiesce_async_compile_time torchinductor_worker_logpath worker_log_path worker_start_method
            worker_suppress_logging
        """,
        "it is about what is printed, drawn, dumped or measured on the way": """
            _profile_var autoheuristic_log_path autotune_num_choices_displayed debug developer_warnings
            disable_progress enabled_metric_tables log_tlparse max_autotune_report_choices_stats profile_bandwidth
            profile_bandwidth_output profile_bandwidth_regex profile_bandwidth_with_do_bench_using_profiling
            reorder_for_peak_memory_debug save_args trace.compile_profile trace.debug_dir trace.debug_log
            trace.dot_graph_shape trace.draw_orig_fx_graph trace.enabled trace.fx_graph trace.fx_graph_transformed
            trace.graph_diagram trace.graph_diagram_format trace.info_log trace.ir_post_fusion trace.ir_pre_fusion
            trace.log_autotuning_results trace.log_url_for_graph_xform trace.orig_fx_graph_diagram_format
            trace.output_code trace.provenance_tracking_level trace.provenance_tracking_max_events
            trace.provenance_tracking_to_timeline trace.save_real_tensors trace.upload_tar
            triton.debug_dump_kernel_inputs triton.max_kernel_dump_occurrences triton.proton_group_by_sm
            triton.proton_output_dir triton.proton_per_cta_occupancy triton.proton_profiling
            triton.proton_split_invocations verbose_progress
        """,
        "CUDA graphs are recorded by the process that runs a result": """
            triton.cudagraph_capture_sizes triton.cudagraph_dynamic_shape_rerecord_limit
            triton.cudagraph_dynamic_shape_warn_limit triton.cudagraph_initial_mempool_allocation_gb
            triton.cudagraph_managed_input_rerecord_action triton.cudagraph_managed_input_rerecord_limit
            triton.cudagraph_trees_generation_cloning triton.cudagraph_trees_history_recording
            triton.cudagraph_trees_objgraph triton.cudagraph_unexpected_rerecord_limit
            triton.fast_path_cudagraph_asserts triton.force_cudagraph_sync triton.force_cudagraphs_warmup
            triton.skip_cudagraph_warmup triton.slow_path_cudagraph_asserts
        """,
        "the worker decides it, by its machine or by what an artifact needs": """
            TYPE_CHECKING cpp.cxx cpp.vec_isa_ok is_nightly_or_source
        """,
        "nothing reads it after torch was imported": """
            _conv_default_backends _partitioned_scatter_default layout_opt_default
        """,
    }
)  # fmt: skip

INDUCTOR = CompilerSettings(allowed=_ALLOWED, refused=_REFUSED, without_effect=_WITHOUT_EFFECT)
