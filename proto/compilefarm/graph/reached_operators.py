"""Operators that run while a graph is decoded: those that a graph may call, and what these come down to.

A function of torch, a composite operator or a derivative calls operators that no graph names. They are on a list of
their own, one by one, so that nothing brings in what graphs may not call: with it kernels would be reached that believe
what they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from compilefarm.core.compiler_settings import names
from compilefarm.graph.targets import is_of_library, may_call
from compilefarm.torch_internals.operators import OpOverload

_STEPS = names("""
    _batch_norm_impl_index _cholesky_solve_helper _compute_linear_combination _conj_copy _convolution
    _convolution_mode _cudnn_rnn _cudnn_rnn_flatten_weight _cummax_helper _cummin_helper _debug_has_internal_overlap
    _efficient_attention_forward _efficientzerotensor _euclidean_dist
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _flash_attention_forward
    _fused_dropout _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional _fused_sdp_choice
    _fw_primal _has_same_storage_numel _index_put_impl _is_zerotensor
    _linalg_eigvals _logcumsumexp _lu_with_info _make_dual _masked_scale
    _masked_softmax _native_batch_norm_legit_functional _new_zeros_with_same_feature_meta _nnpack_available
    _pad_circular _pad_enum _prelu_kernel _reshape_alias _reshape_copy
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _stack _thnn_fused_gru_cell _thnn_fused_lstm_cell _unpack_dual _unsafe_index
    _unsafe_index_put _unsafe_view cudnn_batch_norm cudnn_grid_sampler cudnn_is_acceptable data embedding_renorm
    frobenius_norm is_pinned lift linalg__powsum log_sigmoid_forward
    mkldnn_rnn_layer multilabel_margin_loss_forward nuclear_norm output_nr rrelu_with_noise_functional
    slow_conv3d slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d thnn_conv2d
    unsafe_split_with_sizes
""")
# What torch.func and vmap come down to, torch/csrc/autograd/FunctionsManual.cpp and the like.
_DERIVATIVES = names("""
    _cdist_backward _convolution_double_backward _cudnn_rnn_backward _dirichlet_grad _efficient_attention_backward
    _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward
    _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine_backward
    _flash_attention_backward _fused_rms_norm_backward _log_softmax_backward_data _masked_softmax_backward
    _pdist_backward _prelu_kernel_backward _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data _standard_gamma_grad
    _thnn_differentiable_gru_cell_backward _thnn_differentiable_lstm_cell_backward _thnn_fused_gru_cell_backward
    _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa_backward _weight_norm_differentiable_backward
    _weight_norm_interface_backward adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward affine_grid_generator_backward batch_norm_backward binary_cross_entropy_backward
    conv_tbc_backward cudnn_batch_norm_backward cudnn_grid_sampler_backward cummaxmin_backward cumprod_backward
    diagonal_backward elu_backward embedding_backward embedding_dense_backward
    fake_quantize_per_channel_affine_cachemask_backward fake_quantize_per_tensor_affine_cachemask_backward
    fractional_max_pool2d_backward fractional_max_pool3d_backward gather_backward gelu_backward glu_backward
    glu_backward_jvp glu_jvp grid_sampler_2d_backward grid_sampler_3d_backward hardsigmoid_backward hardswish_backward
    hardtanh_backward huber_loss_backward index_select_backward infinitely_differentiable_gelu_backward
    leaky_relu_backward linear_backward log_sigmoid_backward logit_backward masked_scatter_backward
    masked_select_backward matmul_backward matrix_exp_backward max_pool2d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward mish_backward mkldnn_rnn_layer_backward mse_loss_backward
    multi_margin_loss_backward multilabel_margin_loss_backward native_batch_norm_backward native_dropout_backward
    native_group_norm_backward native_layer_norm_backward nll_loss2d_backward nll_loss_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward rrelu_with_noise_backward
    select_backward sigmoid_backward silu_backward slice_backward slice_inverse slow_conv_dilated2d_backward
    smooth_l1_loss_backward soft_margin_loss_backward softplus_backward tanh_backward threshold_backward
    trace_backward unfold_backward value_selecting_reduction_backward
""")
# torch/nn/modules/linear_cross_entropy.py
_OF_LIBRARIES_OF_TORCH = names("""
    torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction
""")
_REACHED = frozenset(f"aten::{name}" for name in (*_STEPS, *_DERIVATIVES)) | frozenset(_OF_LIBRARIES_OF_TORCH)
# Torch's own forms of operators in Python are written in these, and check what they pass on (torch/_refs).
_IN_PYTHON = ("prim", "prims")


class ReachCheck:
    """Holds each operator that runs to these lists, whatever brought it there.

    Args:
        operators: names of the operators of other libraries than torch that graphs may call.
    """

    def __init__(self, *, operators: Set[str]) -> None:
        self._operators = operators
        self._known: dict[str, bool] = {}
        self._libraries = 0

    def find_objection(self, operator: OpOverload, _args: Sequence[Any], _kwargs: Mapping[str, Any]) -> str | None:
        """Why an operator may not run; None if it may."""
        if self._libraries or self._may_run(operator.name()):
            return None
        return "no graph may call it, and what a graph may call does not come down to it"

    @contextmanager
    def running(self, target: object) -> Iterator[None]:
        """Inside, something runs that a graph calls. What an operator or a function of another library does is
        its own affair.
        """
        is_trusted = self.is_trusted(target)
        self._libraries += is_trusted
        try:
            yield
        finally:
            self._libraries -= is_trusted

    def is_trusted(self, target: object) -> bool:
        """Whether what is called is another library's."""
        return bool(self._operators) and is_of_library(target, operators=self._operators)

    def _may_run(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = is_reached(name) or may_call(name, operators=self._operators)
        return self._known[name]


def is_reached(name: str) -> bool:
    """Whether what a graph may call comes down to an operator of this name ("aten::gelu_backward.grad_input")."""
    return name.partition("::")[0] in _IN_PYTHON or name.partition(".")[0].removesuffix("_") in _REACHED
