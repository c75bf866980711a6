"""Steps within operators of torch: of those whose names begin with an underscore, the ones that graphs of Dynamo really
hold, and of the others those that no graph holds.

Many believe what they are told of sizes and indices, since who calls them has checked that; a request has not.
"""

from __future__ import annotations

import re

# What optimizers compile to; lists of tensors that belong together.
_FAMILIES = ("_foreach_",)
_ADMITTED = frozenset(
    {
        # Assertions.
        "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_check", "_check_is_size",
        "_functional_assert_async", "_functional_assert_scalar", "_functional_sym_constrain_range",
        "_functional_sym_constrain_range_for_size",
        # Optimizers, and scaling of gradients.
        "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_",
        "_fused_adagrad", "_fused_adagrad_", "_fused_adam", "_fused_adam_", "_fused_adamw", "_fused_adamw_",
        "_fused_sgd", "_fused_sgd_",
        # Products of matrices of few bits, and grouped ones.
        "_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu", "_grouped_mm", "_int_mm",
        "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "_scaled_mm", "_scaled_mm_v2", "_weight_int4pack_mm",
        "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm",
        # Attention and transformers.
        "_native_multi_head_attention", "_safe_softmax", "_scaled_dot_product_flash_attention_for_cpu",
        "_transformer_encoder_layer_fwd",
        # Norms, activations and their gradients.
        "_batch_norm_with_update", "_fused_rms_norm", "_log_softmax", "_log_softmax_backward_data",
        "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_softmax", "_softmax_backward_data",
        "_weight_norm", "_weight_norm_interface",
        # Images.
        "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa",
        "_upsample_lanczos2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        # Quantization while training, random numbers, sets, views, conversions.
        "_aminmax", "_chunk_cat", "_conj", "_conj_physical", "_fake_quantize_learnable_per_channel_affine",
        "_fake_quantize_learnable_per_tensor_affine", "_is_all_true", "_is_any_true", "_local_scalar_dense",
        "_neg_view", "_sample_dirichlet", "_shape_as_tensor", "_standard_gamma", "_to_copy", "_trilinear", "_unique",
        "_unique2",
    }
)  # fmt: skip


# Gradients, which are derived from a graph after it was decoded; kernels of libraries; what passes of Inductor write.
_STEPS = re.compile(
    r".+_backward(_.*)?|(batch_norm_(stats|elemt|gather|backward|update)|cudnn_|fbgemm_|inductor_|mkldnn_|slow_conv).*"
)
# They take lengths, pivots or places of elements on trust, and hardly any model calls them.
_TRUSTING = frozenset(
    {"linalg_ldl_solve", "segment_reduce", "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor",
     "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor"}
)  # fmt: skip


def is_refused(name: str) -> bool:
    """Whether an operator is one that no graph needs, or that believes too much.

    Args:
        name: without namespace and overload ("_weight_norm"). Python's own names ("__and__") are none of these.
    """
    if name.startswith("_"):
        return not name.startswith(("__", *_FAMILIES)) and name not in _ADMITTED
    return name in _TRUSTING or _STEPS.fullmatch(name) is not None
