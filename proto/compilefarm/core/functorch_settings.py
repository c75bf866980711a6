"""The class of each setting of torch._functorch.config in requests: torch 2.11 to 2.15."""

from __future__ import annotations

from compilefarm.core.compiler_settings import (
    Boolean,
    CompilerSettings,
    Integer,
    Real,
    SettingType,
    Word,
    by_reason,
    names,
)

_BOOLEANS = names("""
    activation_memory_budget_require_full_coverage activation_offload_separate_stream activation_offload_sink_wait
    activation_reload_prefetch aggressive_recomputation ban_recompute_long_fusible_chains
    ban_recompute_materialized_backward ban_recompute_not_in_allowlist ban_recompute_reductions
    ban_recompute_used_far_apart cse decompose_custom_triton_ops
    disable_guess_zero_tangent_for_mutated_input_subclass donated_buffer enable_activation_offloading
    enable_complex_wrapper functionalize_rng_ops graphsafe_rng_functionalization guess_tangent_strides_as_outputs
    recompute_views remat_using_tags_for_fwd_loss_bwd_graph selective_decompose static_weight_shapes
    treat_parameters_as_free_to_save view_replay_for_aliased_outputs
""")
_ALLOWED: dict[str, SettingType] = {
    **dict.fromkeys(_BOOLEANS, Boolean()),
    "activation_memory_budget": Real(low=0, high=1),
    "activation_memory_budget_runtime_estimator": Word(words=frozenset(names("flops profile"))),
    "activation_memory_budget_solver": Word(words=frozenset(names("dp greedy ilp dp_knapsack_sliding_hirschberg"))),
    "activation_offload_cpu_gpu_bw": Real(low=0, high=1e9),
    "backward_pass_autocast": Word(words=frozenset(names("same_as_forward off"))),
    "custom_op_default_layout_constraint": Word(
        words=frozenset(names("needs_exact_strides needs_fixed_stride_order flexible_layout"))
    ),
    "max_dist_from_bw": Integer(low=0, high=1 << 32),
    "saved_tensors_hooks_filtering_mode": Word(words=frozenset(names("donated no_static all"))),
}
_REFUSED = by_reason(
    {
        "it names functions": "joint_custom_pass",
        "it is for programs of several processes": """
            _sync_cache_decision_cross_ranks _sync_decision_cross_ranks unsafe_allow_optimization_of_collectives
        """,
        "it is about tracing, which a pod has done": """
            fake_tensor_allow_meta fake_tensor_allow_unsafe_data_ptr_access fake_tensor_crossref
            fake_tensor_prefer_device_type fake_tensor_propagate_real_tensors
            generate_fake_kernels_from_real_mismatches unsafe_treat_script_objects_as_zero_size
        """,
        "it is for finding faults": """
            _test_disable_functionalization check_custom_op_aliasing debug_assert debug_partitioner
            error_on_custom_op_aliasing
        """,
    }
)
_WITHOUT_EFFECT = by_reason(
    {
        "it says what is kept for a later compile, and where": """
            _save_config_ignore autograd_cache_allow_custom_autograd_functions autograd_cache_normalize_inputs
            bundled_autograd_cache bypass_autograd_cache_key enable_autograd_cache enable_remote_autograd_cache
            force_autograd_cache strict_autograd_cache
        """,
        "it is about what is printed or drawn on the way": """
            memory_budget_pareto_dir torch_compile_graph_format visualize_memory_budget_pareto
        """,
        # torch/_inductor/compile_fx.py
        "Inductor sets it itself": "unlift_effect_tokens",
        "the worker decides it": "TYPE_CHECKING force_non_lazy_backward_lowering is_non_builtin_to_include",
    }
)

FUNCTORCH = CompilerSettings(allowed=_ALLOWED, refused=_REFUSED, without_effect=_WITHOUT_EFFECT)
