"""Operators of torch that a graph may call, by name. All others are refused, those of later releases among them.

Listed is what programs write: functions and methods that torch documents, what Dynamo puts in their place, and what
graphs of torch.export hold for them (Core ATen); fused attention has a list of its own (`graph/attention.py`). Not
listed are most gradients, which are derived from a graph after it was decoded, or taken apart in the pod; kernels of
libraries and steps that only torch itself calls; sparse and quantized tensors, which no request brings; and what takes
lengths or places of elements on trust. A caller could have these reach other memory. Of what is listed, pivots
(graph/pivots.py) and offsets (graph/offsets.py) are looked at.
"""

from __future__ import annotations

from compilefarm.core.compiler_settings import names
from compilefarm.graph import collectives

# A name stands for its form in place, too: "add" for "add_".
_ELEMENTWISE = names("""
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp
    clamp_max clamp_min clip conj conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp
    exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal gt heaviside
    hypot i0 igamma igammac imag isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp less
    less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
    lt maximum minimum mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polygamma positive pow
    rad2deg real reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub subtract
    tan tanh true_divide trunc where xlogy __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__
    __rshift__ __xor__
""")
_SPECIAL = names("""
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv
    special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
    special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_log_softmax
    special_logit special_logsumexp special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_polygamma special_psi
    special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_sinc special_softmax
    special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta
""")
_REDUCTIONS = names("""
    all allclose amax amin aminmax any argmax argmin bincount corrcoef count_nonzero cov cummax cummin
    cumprod cumsum cumulative_trapezoid diff dist equal gradient hash_tensor histc kthvalue
    logcumsumexp logsumexp max mean median min mode nanmean nanmedian nanquantile nansum norm prod quantile std
    std_mean sum sum_to_size trace trapezoid trapz unique_consecutive unique_dim unique_dim_consecutive var var_mean
    _aminmax _is_all_true _is_any_true _unique _unique2
""")
_MAKING = names("""
    arange bartlett_window blackman_window complex empty empty_like empty_permuted empty_strided eye full full_like
    hamming_window hann_window kaiser_window linspace logspace new_empty new_empty_strided new_full new_ones new_zeros
    ones ones_like polar range scalar_tensor tril_indices triu_indices vander zeros zeros_like as_tensor tensor
    new_tensor _shape_as_tensor
""")
_RANDOM = names("""
    bernoulli binomial cauchy exponential geometric log_normal multinomial normal poisson rand rand_like randint
    randint_like randn randn_like random randperm uniform _sample_dirichlet _standard_gamma
""")
_FILLING = names("copy fill fill_diagonal zero requires_grad_ resize resize_as")
_SHAPES = names("""
    adjoint alias alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag
    broadcast_tensors broadcast_to cartesian_prod cat chalf channel_shuffle chunk clone column_stack combinations concat
    concatenate constant_pad_nd contiguous detach detach_copy diag diag_embed diagflat diagonal diagonal_copy
    diagonal_scatter dsplit dstack expand expand_as expand_copy flatten flip fliplr flipud hsplit hstack lift_fresh
    lift_fresh_copy mH mT matrix_H meshgrid moveaxis movedim msort narrow narrow_copy native_channel_shuffle numpy_T
    pad pad_sequence permute permute_copy pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape
    reshape_as resolve_conj resolve_neg roll rot90 row_stack select select_copy select_scatter slice slice_copy
    slice_scatter split split_copy split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims
    t t_copy tensor_split tile to to_dense topk transpose transpose_copy tril triu type_as unbind unbind_copy
    unflatten unfold unfold_copy unsafe_chunk unsafe_split unsqueeze unsqueeze_copy view view_as view_as_complex
    view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack _chunk_cat _conj _conj_physical
    _neg_view _to_copy bfloat16 bool byte cdouble cfloat char cpu cuda double float half int long short type
""")
_PLACES = names("""
    argsort argwhere bucketize gather index index_add index_copy index_fill index_put index_reduce index_select isin
    masked_fill masked_scatter masked_select nonzero nonzero_numpy nonzero_static put scatter scatter_add
    scatter_reduce searchsorted sort take take_along_dim unique unravel_index
""")
_QUESTIONS = names("""
    can_cast dim element_size get_device is_complex is_conj is_contiguous is_floating_point is_inference is_leaf
    is_neg is_nonzero is_same_size is_set_to is_signed item ndimension nelement numel promote_types result_type size
    storage_offset stride sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride _local_scalar_dense
    dim_order
""")
_LINEAR_ALGEBRA = names("""
    addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul cholesky cholesky_inverse cholesky_solve cross det
    dot einsum geqrf ger inner inverse kron linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det
    linalg_diagonal linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
    linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor
    linalg_lu_factor_ex linalg_lu_solve linalg_matmul linalg_matrix_exp
    linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_matrix_sqrth linalg_multi_dot linalg_norm
    linalg_pinv linalg_polar linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd
    linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm logdet lu_solve
    lu_unpack matmul
    matrix_exp matrix_power mm mv orgqr ormqr outer pairwise_distance pdist pinverse qr renorm slogdet svd tensordot
    triangular_solve vdot _trilinear _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _grouped_mm
    _int_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2 _weight_int4pack_mm
    _weight_int4pack_mm_for_cpu _weight_int8pack_mm
""")
_TRANSFORMS = names("""
    fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq
    fft_rfftn istft stft
""")
_NETWORKS = names("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d affine_grid_generator alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm celu col2im
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution dropout elu embedding
    embedding_bag feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool3d gelu glu
    grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell hardshrink hardsigmoid hardswish hardtanh
    im2col instance_norm layer_norm leaky_relu linear log_sigmoid log_softmax lstm lstm_cell max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d
    max_unpool3d mish native_batch_norm native_dropout native_dropout_backward native_group_norm native_layer_norm
    native_norm norm_except_dim one_hot prelu reflection_pad1d reflection_pad2d reflection_pad3d relu relu6
    replication_pad1d replication_pad2d replication_pad3d rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell rrelu
    rrelu_with_noise scaled_dot_product_attention selu silu softmax softplus softshrink threshold upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _fused_rms_norm _log_softmax
    _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_multi_head_attention _safe_softmax _scaled_dot_product_flash_attention_for_cpu _softmax
    _softmax_backward_data _transformer_encoder_layer_fwd _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm
    _weight_norm_interface
""")
_LOSSES = names("""
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cosine_similarity cross_entropy_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd poisson_nll_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss
""")
# Quantization while training.
_QUANTIZATION = names("""
    fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine
    fake_quantize_per_tensor_affine_cachemask fused_moving_avg_obs_fake_quant
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
""")
# Steps of optimizers, which compile to lists of tensors that belong together, and scaling of gradients.
_OPTIMIZERS = names("""
    _amp_foreach_non_finite_check_and_unscale _amp_update_scale _fused_adagrad _fused_adam _fused_adamw _fused_sgd
    _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan
    _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone _foreach_copy _foreach_cos _foreach_cosh
    _foreach_div _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp
    _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum
    _foreach_minimum _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum
    _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh
    _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero
""")
_ASSERTIONS = names("""
    _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async _functional_assert_scalar
    _functional_sym_constrain_range _functional_sym_constrain_range_for_size sym_constrain_range
    sym_constrain_range_for_size
""")
# Gradients that functions of autograd call by name, as torch.nn.grad does, and that compiled autograd calls. They check
# what they are given, or are looked at (graph/misfits.py); pods send others as what these are made of
# (graph/plain_graphs.py).
_GRADIENTS = names("""
    avg_pool2d_backward avg_pool3d_backward convolution_backward hardshrink_backward replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward softshrink_backward upsample_bicubic2d_backward
    upsample_bilinear2d_backward upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward upsample_trilinear3d_backward _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d_backward
""")
# Steps of functions above that check what they are given, or are looked at (graph/misfits.py). Graphs that AOTAutograd
# has taken apart in the pod call these.
_STEPS = names("""
    _cdist_forward _embedding_bag _embedding_bag_forward_only _fft_c2c _fft_c2r _fft_r2c _linalg_check_errors
    _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _pdist_forward
""")
_ATEN = frozenset(
    name
    for family in (
        *(_ELEMENTWISE, _SPECIAL, _REDUCTIONS, _MAKING, _RANDOM, _FILLING, _SHAPES, _PLACES, _QUESTIONS),
        *(
            _LINEAR_ALGEBRA,
            _TRANSFORMS,
            _NETWORKS,
            _LOSSES,
            _QUANTIZATION,
            _OPTIMIZERS,
            _ASSERTIONS,
            _GRADIENTS,
            _STEPS,
        ),
    )
    for name in family
)
# Those of torch.ops.prims that compute element by element, or count (iota); Dynamo writes fma for optimizers.
_PRIMS = frozenset(
    names("""
    abs acos acosh add asin asinh atan atan2 atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1
    bitwise_and bitwise_not bitwise_or bitwise_xor cbrt ceil clone convert_element_type cos cosh digamma div eq erf
    erf_inv erfc erfcx exp exp2 expm1 floor fma fmax fmin fmod gcd ge gt hypot igamma igammac iota isfinite le lgamma
    log log10 log1p log2 lt maximum minimum mul ndtri ne neg nextafter pow reciprocal remainder round rsqrt shift_left
    shift_right_arithmetic sign signbit sin sinh spherical_bessel_j0 sqrt sub tan tanh trunc where zeta
""")
)
# Those of models that were quantized by way of torch.export (PT2E), as far as Inductor makes kernels of them.
_QUANTIZED = names(
    "choose_qparams dequantize_per_channel dequantize_per_tensor quantize_per_channel quantize_per_tensor"
)


def is_admitted(name: str, *, namespace: str = "aten") -> bool:
    """Whether a graph may call an operator, or torch's function or method of that name.

    Args:
        name: without namespace and overload ("add_").
        namespace: "aten", "prims", "quantized_decomposed" or one of the collectives'; those of other parts of
            torch hold nothing that graphs call.
    """
    if namespace in collectives.NAMESPACES:
        return name in collectives.OPERATORS
    if namespace == "prims":
        return name in _PRIMS
    if namespace == "quantized_decomposed":
        return name in _QUANTIZED
    return namespace == "aten" and (name in _ATEN or (name[-2:-1] != "_" and name.removesuffix("_") in _ATEN))
