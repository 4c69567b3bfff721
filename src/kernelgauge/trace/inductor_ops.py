"""The names of the ops that Inductor merges into one kernel, and how a run of them is taken apart again.

Inductor joins the ATen names of the fused ops with "_" (torch/_inductor/utils.py: get_fused_kernel_name), and those
names contain "_" themselves, some at the front (`_unsafe_view`) or the end (`copy_`): `_unsafe_view_gelu_mul`.
"""

from __future__ import annotations

__all__ = ["ATTENTION_OPS", "CONVOLUTION_OPS", "MATMUL_OPS", "OPS", "REDUCING_OPS", "split_ops"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# From torch 2.13's schemas (aten and prims), without what is not lowered to a fused kernel (sparse, quantized, nested,
# special_*, other backends) and without `log_normal`, which is far more often `log` next to `normal`. Added: the
# composite ops that appear with config.triton.descriptive_names = "torch", torch/_inductor/inductor_prims.py, the
# higher-order ops, the functional collectives, and the in-place names of mutations (`copy_`).
OPS = _names(
    """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _add_relu
_addmm_activation _aminmax _cdist_forward _chunk_cat _conj _conv_depthwise2d _convolution
_efficient_attention_backward _efficient_attention_forward _embedding_bag _embedding_bag_backward
_embedding_bag_dense_backward _fft_c2c _fft_c2r _fft_r2c _flash_attention_backward _flash_attention_forward
_foreach_add _foreach_addcdiv _foreach_addcmul _foreach_copy _foreach_div _foreach_lerp _foreach_max
_foreach_maximum _foreach_minimum _foreach_mm _foreach_mul _foreach_norm _foreach_pow _foreach_powsum _foreach_sqrt
_foreach_sub _foreach_zero _fused_adagrad _fused_adam _fused_adamw _fused_dropout _fused_rms_norm
_fused_rms_norm_backward _fused_sgd _grouped_mm _index_put_impl _int_mm _is_all_true _is_any_true
_local_scalar_dense _log_softmax _log_softmax_backward_data _logcumsumexp _masked_scale _masked_softmax
_masked_softmax_backward _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _prelu_kernel _prelu_kernel_backward _reshape_alias _reshape_alias_copy
_reshape_copy _safe_softmax _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_flash_attention_for_cpu _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2
_softmax _softmax_backward_data _to_copy _unsafe_index _unsafe_index_put _unsafe_masked_index
_unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d
_upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
_upsample_nearest_exact3d _upsample_nearest_exact3d_backward _weight_int4pack_mm _weight_int8pack_mm
_weight_norm_interface _weight_norm_interface_backward abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d
adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
adaptive_max_pool3d_backward add addbmm addcdiv addcmul addmm addmv addr affine_grid_generator alias alias_copy all
all_gather_into_tensor all_reduce all_to_all_single amax amin aminmax angle any arange argmax argmin as_strided
as_strided_copy as_strided_scatter asin asinh atan atan2 atanh auto_functionalized auto_functionalized_v2 avg_pool1d
avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm batch_norm batch_norm_backward bernoulli
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bincount binomial bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor block_diag bmm broadcast_in_dim
broadcast_to bucketize cat cbrt ceil celu channel_shuffle chunk clamp clamp_max clamp_min clone col2im conj
conj_physical constant_pad_nd contiguous conv1d conv2d conv3d convert_element_type convolution convolution_backward
copy copy_ copysign cos cosh count_nonzero cross_entropy_loss cudnn_batch_norm cudnn_batch_norm_backward cummax
cummin cumprod cumsum deg2rad dequantize_per_channel dequantize_per_tensor detach detach_copy diag_embed diagonal
diagonal_backward diagonal_copy diagonal_scatter digamma dist div dot dropout einsum elu elu_backward embedding
embedding_dense_backward empty empty_like empty_permuted empty_strided eq erf erfc erfinv exp exp2 expand expand_as
expand_copy expm1 exponential eye fill fill_ flatten flex_attention flex_attention_backward flip floor floor_divide
fma fmax fmin fmod frac frexp full full_like gather gcd ge gelu gelu_backward glu glu_backward grid_sampler_2d
grid_sampler_2d_backward grid_sampler_3d group_norm gt hardshrink hardshrink_backward hardsigmoid
hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside histc huber_loss
huber_loss_backward hypot i0 igamma igammac im2col imag index index_add index_copy index_copy_ index_fill index_put
index_put_ index_reduce index_select inductor_force_stride_order inductor_lookup_seed inductor_randint
inductor_random inductor_seed inductor_seeds iota isfinite isin isinf isnan isneginf isposinf kthvalue layer_norm
lcm ldexp le leaky_relu leaky_relu_backward lerp lgamma lift_fresh lift_fresh_copy linalg__powsum linalg_cross
linalg_vector_norm linear linear_backward linspace log log10 log1p log2 log_sigmoid log_sigmoid_backward
log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor
logit logit_backward logspace logsumexp lt masked_fill masked_scatter masked_scatter_backward masked_select matmul
matmul_backward max max_pool1d max_pool2d max_pool2d_backward max_pool2d_with_indices
max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward maximum mean median min
minimum mish mm mm_plus_mm mode movedim mse_loss mse_loss_backward mul multi_margin_loss multi_margin_loss_backward
multinomial mv mvlgamma nan_to_num nanmedian nansum narrow_copy native_batch_norm native_batch_norm_backward
native_dropout native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward ne neg new_empty new_full new_ones new_zeros nextafter nll_loss nll_loss2d_backward
nll_loss2d_forward nll_loss_backward nll_loss_forward nonzero nonzero_static norm normal normal_functional one_hot
ones ones_like pad permute permute_copy pixel_shuffle pixel_unshuffle poisson polar polygamma pow
prepare_softmax_online prod put quantize_per_channel quantize_per_tensor rad2deg rand rand_like randint randint_like
randn randn_like random randperm real reciprocal reduce_scatter_tensor reflection_pad1d reflection_pad1d_backward
reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward relu remainder renorm repeat
repeat_interleave replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
replication_pad3d replication_pad3d_backward reshape reshape_as rms_norm roll rot90 round rrelu_with_noise
rrelu_with_noise_backward rrelu_with_noise_functional rsqrt rsub run_and_save_rng_state scalar_tensor
scaled_dot_product_attention scatter scatter_ scatter_add scatter_add_ scatter_reduce searchsorted select
select_backward select_copy select_scatter sgn shift_left sigmoid sigmoid_backward sign signbit silu silu_backward
sin sinc sinh slice slice_backward slice_copy slice_inverse slice_scatter smooth_l1_loss smooth_l1_loss_backward
soft_margin_loss soft_margin_loss_backward softmax softplus softplus_backward softshrink softshrink_backward sort
split split_copy split_with_sizes split_with_sizes_copy sqrt square squeeze squeeze_copy stack std std_mean sub sum
swapaxes t t_copy take tan tanh tanh_backward threshold threshold_backward topk trace transpose transpose_copy tril
triton_kernel_wrapper_functional triton_kernel_wrapper_mutation triu true_divide trunc type_as unbind unbind_copy
unfold unfold_backward unfold_copy uniform unique_consecutive unique_dim unique_dim_consecutive unsafe_split
unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
upsample_nearest3d_backward var var_mean vdot view view_as view_as_complex view_as_complex_copy view_as_real
view_as_real_copy view_copy view_of wait_tensor where xlogy zero zeros zeros_like zeta
"""
)

MATMUL_OPS = _names(
    """
_grouped_mm _int_mm _scaled_grouped_mm _scaled_mm _scaled_mm_v2 addbmm addmm addmv baddbmm bmm linear matmul mm
mm_plus_mm mv
"""
)
CONVOLUTION_OPS = _names("_convolution conv1d conv2d conv3d convolution convolution_backward")
ATTENTION_OPS = frozenset(op for op in OPS if "attention" in op)
REDUCING_OPS = _names(
    """
_fused_rms_norm _log_softmax _native_batch_norm_legit_functional _safe_softmax _softmax _softmax_backward_data all
amax amin any argmax argmin count_nonzero cumprod cumsum layer_norm linalg_vector_norm log_softmax logcumsumexp
logsumexp max mean median min native_batch_norm native_group_norm native_layer_norm native_layer_norm_backward norm
prepare_softmax_online prod rms_norm softmax std std_mean sum var var_mean
"""
)

_LONGEST = max(op.count("_") for op in OPS) + 1


def split_ops(merged: str) -> tuple[str, ...]:
    """Split `merged` into op names, the longest known name first; `"_".join` of the result is always `merged`.

    What no known name covers stays whole up to the next known one: a custom op keeps its underscores. Two ops whose
    joined names are an op too cannot be told from it: `index_select` may be `index` and `select`.
    """
    pieces = merged.split("_") if merged else []
    ops: list[str] = []
    unknown: list[str] = []
    at = 0
    while at < len(pieces):
        end = _end_of_op(pieces, at)
        if end == at:
            unknown.append(pieces[at])
            at += 1
            continue
        op = "_".join(pieces[at:end])
        if unknown == [""] and not ops:
            op, unknown = "_" + op, []
        _flush(unknown, ops)
        ops.append(op)
        at, unknown = end, []
    _flush(unknown, ops)
    return tuple(ops)


def _end_of_op(pieces: list[str], at: int) -> int:
    """One past the last piece of the longest known op that starts at `at`; `at` where none does."""
    for end in range(min(len(pieces), at + _LONGEST), at, -1):
        if "_".join(pieces[at:end]) in OPS:
            return end
    return at


def _flush(unknown: list[str], ops: list[str]) -> None:
    if unknown == [""] and ops:
        ops[-1] += "_"  # an in-place op: `relu__add` is `relu_` and `add`, for names with a leading "_" sort first
    elif unknown:
        ops.append("_".join(unknown))
