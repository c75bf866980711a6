"""The treatment of each setting of torch._dynamo.config and torch.fx.experimental._config: torch 2.11 to 2.15.

They are no part of a request. Most decide which graph Dynamo hands over, and have done so by then; what is read again
while the graph is compiled keeps a pod that has changed it from asking.
"""

from __future__ import annotations

from collections.abc import Mapping

from compilefarm.core.treatment import Treatment

_BEFORE_THE_GRAPH = "decides which graph Dynamo hands over, when it is traced again, and what is guarded"
_FAKES = "decides what shapes operators are said to give while a graph is compiled"
_ASIDE = "is about caches, or about what is printed, logged, kept or measured"
_EXPLAINED = "checks, explains or prints what is found out about sizes, and changes nothing of it"
_SIZES = "decides what is assumed of sizes while a graph is compiled"

_DYNAMO: Mapping[tuple[Treatment, str], tuple[str, ...]] = {
    (Treatment.BYPASS, _FAKES): ("_custom_ops_profile",),
    (Treatment.NO_EFFECT, _ASIDE): (
        "TYPE_CHECKING", "_save_config_ignore", "automatic_dynamic_local_pgo", "automatic_dynamic_remote_pgo",
        "base_dir", "caching_precompile", "cprofile", "debug_dir_root", "debug_disable_compile_counter",
        "dynamo_profiler", "fake_tensor_cache_crosscheck_enabled", "fake_tensor_cache_enabled",
        "gc_gen2_threshold_during_compile", "issue_3_13_0_warning", "log_compilation_metrics", "log_file_name",
        "log_graph_in_out_metadata", "pt2_compile_id_prefix", "record_compile_time_instruction_count",
        "record_runtime_overhead", "replay_record_enabled", "report_guard_failures", "repro_after",
        "repro_forward_only", "repro_ignore_non_fp", "repro_level", "repro_tolerance", "run_gc_after_compile",
        "same_two_models_use_fp64", "strict_precompile", "suppress_errors", "use_lazy_graph_module", "verbose",
        "verify_correctness",
    ),
    (Treatment.NO_EFFECT, "is of other backends than Inductor"): (
        "cudagraph_backend_keep_input_mutation", "cudagraph_backend_support_input_mutation", "debug_backend_override",
    ),
    (Treatment.NO_EFFECT, _BEFORE_THE_GRAPH): (
        "_autograd_backward_strict_mode_banned_ops", "_autograd_backward_strict_mode_conditional_banned_ops",
        "_dynamic_shapes_spec", "_unsafe_skip_fsdp_module_guards", "accumulated_cache_size_limit",
        "accumulated_recompile_limit", "allow_empty_graphs", "allow_ignore_mark_dynamic", "allow_rnn",
        "allow_unspec_int_on_nn_module", "allowed_functions_module_string_ignorelist",
        "assume_dunder_attributes_remain_unchanged", "assume_static_by_default", "automatic_dynamic_exclusion_guard",
        "automatic_dynamic_shapes", "automatic_dynamic_shapes_mark_as", "cache_size_limit",
        "canonicalize_output_graph_node_order", "capture_autograd_function", "capture_dynamic_output_shape_ops",
        "capture_func_transforms", "capture_profiler_record_function", "capture_scalar_outputs",
        "capture_sparse_compute", "compiled_autograd", "compiled_autograd_kwargs_override",
        "computed_lazy_constant_max_nodes", "constant_fold_autograd_profiler_enabled", "dead_code_elimination",
        "debug_dynamo_config_override", "debug_force_graph_break_on_leaf_return", "debug_force_nested_calls",
        "debug_inductor_config_override", "disable", "do_not_emit_runtime_asserts", "dont_skip_tracing",
        "dynamic_shapes", "enable_aot_compile", "enable_compiler_collectives", "enable_cpp_framelocals_guard_eval",
        "enable_cpp_guard_manager", "enable_cpp_symbolic_shape_guards", "enable_dynamo_decompositions",
        "enable_faithful_generator_behavior", "enable_invoke_subgraph_regional_compile", "enable_p2p_compilation",
        "enable_trace_contextlib", "enable_trace_load_build_class", "enable_trace_unittest",
        "error_on_dynamo_callback_in_fullgraph_compiled_code", "error_on_nested_fx_trace", "error_on_nested_jit_trace",
        "error_on_recompile", "fail_on_cache_limit_hit", "fail_on_recompile_limit_hit",
        "fake_tensor_disable_inference_mode", "force_compile_during_fx_trace", "force_nn_module_property_static_shapes",
        "force_parameter_static_shapes", "force_unspec_int_unbacked_size_like_on_torchrec_kjt", "generate_pycode",
        "graph_break_on_nn_param_ctor", "graph_deduplication_lint", "guard_nn_modules",
        "guard_nn_modules_using_dict_tags", "ignore_logger_methods", "ignore_logging_functions",
        "inject_BUILD_SET_unimplemented_TESTING_ONLY", "inline_inbuilt_nn_modules", "inline_invoke_subgraph",
        "inline_single_use_invoke_subgraph", "inline_torch_dispatch_torch_compile", "install_free_tensors",
        "install_free_tensors_for_export", "invalidate_compile_context_weakrefs",
        "leaf_function_check_escaped_gradients", "leaf_function_validate_outputs",
        "max_saved_pointers_for_recursive_dict_tags_check", "minimum_call_count", "nested_graph_breaks",
        "nontraceable_tensor_subclasses", "numpy_default_complex", "numpy_default_float", "numpy_default_int",
        "only_allow_pt2_compliant_ops", "optimize_ddp", "optimize_ddp_lazy_compile",
        "prefer_deferred_runtime_asserts_over_guards", "prepare_freezing", "raise_on_ctx_manager_usage",
        "raise_on_unsafe_aot_autograd", "recompile_limit", "reorderable_logging_functions", "replay_side_effects",
        "rewrite_assert_with_torch_assert", "side_effect_replay_policy", "skip_code_recursive_on_cache_limit_hit",
        "skip_code_recursive_on_recompile_limit_hit", "skip_fsdp_guards", "skip_fsdp_hooks",
        "skip_fwd_side_effects_in_bwd_under_checkpoint", "skip_guards_on_constant_func_defaults",
        "skip_nnmodule_hook_guards", "skip_no_tensor_aliasing_guards_on_parameters",
        "skip_tensor_guards_with_matching_dict_tags", "skip_torchrec", "skipfiles_inline_module_allowlist",
        "specialize_float", "specialize_int", "trace_autograd_ops", "trace_numpy", "traceable_tensor_subclasses",
        "track_nodes_for_deduplication", "use_graph_deduplication", "use_lamba_guard_for_object_aliasing",
        "use_numpy_random_stream", "use_recursive_dict_tags_for_guards", "wrap_top_frame",
    ),
}  # fmt: skip
_SYMBOLIC_SHAPES: Mapping[tuple[Treatment, str], tuple[str, ...]] = {
    (Treatment.BYPASS, _FAKES): ("meta_nonzero_assume_all_nonzero", "skip_dtype_check_in_meta_registrations"),
    (Treatment.BYPASS, _SIZES): (
        "aggressive_guard_free_semantics", "backed_size_oblivious", "soft_pending_unbacked_not_found_error",
        "symbol_guard_limit_before_specialize", "unify_view_symbols_bso_meta", "use_duck_shape",
    ),
    (Treatment.NO_EFFECT, _EXPLAINED): (
        "check_shape_env_recorded_events", "enrich_profiler_metadata", "extended_debug_cpp",
        "extended_debug_create_symbol", "extended_debug_current_loc", "extended_debug_guard_added",
        "inject_EVALUATE_EXPR_flip_equality_TESTING_ONLY", "no_data_dependent_graph_break", "print_specializations",
        "translation_validation", "translation_validation_no_bisect", "translation_validation_timeout",
        "validate_shape_env_version_key",
    ),
}  # fmt: skip


def _by_name(groups: Mapping[tuple[Treatment, str], tuple[str, ...]]) -> Mapping[str, tuple[Treatment, str]]:
    return {name: treatment for treatment, names in groups.items() for name in names}


DYNAMO = _by_name(_DYNAMO)
SYMBOLIC_SHAPES = _by_name(_SYMBOLIC_SHAPES)


def decides_traces(name: str) -> bool:
    """Whether a setting may decide what Dynamo finds out about a function; one that nobody has classified may."""
    return {**DYNAMO, **SYMBOLIC_SHAPES}.get(name, (Treatment.KEY, ""))[1] not in (_ASIDE, _EXPLAINED)
