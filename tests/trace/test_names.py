"""Names are real: recorded on an H200 (tests/data/h200), or as public profiles and kernel sources write them."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgauge.trace.inductor_ops import OPS, split_ops
from kernelgauge.trace.names import RULES, Kind, decode

RECORDED = Path(__file__).parents[1] / "data" / "h200"
TRACES = sorted(RECORDED.glob("*.json.gz"))

GELU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>)"
)
COPY_IN_NSIGHT = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) "
    "(instance 1)], std::array<char *, (unsigned long)2>, (int)4>(int, T1, T2, T4, T5, T6, T7)"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 32, 4, false, false, cutlass::half_t, "
    "Flash_kernel_traits<64, 128, 32, 4, cutlass::half_t> >, false, false, false, false, false, true, false, false>"
    "(pytorch_flash::Flash_fwd_params)"
)


def recorded(workload: str, category: str = "kernel") -> list[str]:
    """The names of the rows of one category, in the order of the trace."""
    events = json.loads(gzip.decompress((RECORDED / f"{workload}.json.gz").read_bytes()))["traceEvents"]
    rows = [event for event in events if event.get("cat") == category]
    return [event["name"] for event in sorted(rows, key=lambda event: float(event["ts"]))]


def kinds(workload: str) -> list[Kind]:
    return [decode(name).kind for name in recorded(workload)]


# --- recorded on an H200 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name)
def test_every_recorded_kernel_is_known(trace: Path) -> None:
    for name in recorded(trace.name.removesuffix(".json.gz")):
        decoded = decode(name)
        assert decoded.raw == name
        assert decoded.kind is not Kind.OTHER, name
        assert decoded.backend != "other", name


def test_the_eager_mlp_is_two_gemms_gelu_mul_and_a_gemm() -> None:
    once = kinds("mlp-eager")[:5]
    assert once == [Kind.GEMM, Kind.GEMM, Kind.POINTWISE, Kind.POINTWISE, Kind.GEMM]
    assert [decode(name).ops for name in recorded("mlp-eager")[2:4]] == [("gelu",), ("mul",)]


def test_the_compiled_mlp_has_one_fused_kernel_between_its_gemms() -> None:
    assert kinds("mlp-compiled")[:4] == [Kind.GEMM, Kind.GEMM, Kind.POINTWISE, Kind.GEMM]
    fused = decode(recorded("mlp-compiled")[2])
    assert fused.backend == "inductor-triton"
    assert fused.ops == ("_unsafe_view", "gelu", "mul")
    assert fused.graph_id == 0


def test_fused_kernel_of_the_liger_mlp_is_ligers() -> None:
    fused = decode(recorded("mlp-liger")[2])
    assert (fused.backend, fused.kind, fused.ops) == ("liger", Kind.POINTWISE, ("geglu_tanh",))


def test_a_memset_is_no_kernel_of_any_other_kind() -> None:
    names = recorded("mlp-eager", "gpu_memset")
    assert set(names) == {"Memset (Device)"}
    assert decode(names[0]).kind is Kind.MEMSET


def test_a_split_k_gemm_and_the_reduce_after_it_both_say_split_k() -> None:
    gemm, reduce = (decode(name) for name in recorded("linear-eager-splitk")[:2])
    assert (gemm.kind, gemm.split_k, gemm.bias_epilogue) == (Kind.GEMM, True, True)
    assert (reduce.kind, reduce.split_k, reduce.short) == (Kind.SPLITK_REDUCE, True, "splitKreduce_kernel")


def test_compiling_matmul_add_moves_the_add_into_the_epilogue_of_the_gemm() -> None:
    gemm, add = (decode(name) for name in recorded("matmul_add-eager")[:2])
    assert (gemm.bias_epilogue, gemm.layout, add.ops) == (False, "NNT", ("add",))
    (fused,) = {decode(name) for name in recorded("matmul_add-compiled")}
    assert (fused.bias_epilogue, fused.layout) == (True, "NNT")


def test_training_runs_copies_a_fill_and_a_reduction_too() -> None:
    found = {(decode(name).kind, decode(name).ops) for name in recorded("mlp-eager-train")}
    assert {(Kind.COPY, ("copy",)), (Kind.FILL, ("fill",)), (Kind.REDUCTION, ("sum",))} <= found
    assert (Kind.POINTWISE, ("gelu_backward",)) in found


def test_a_cuda_graph_copies_its_inputs_with_a_multi_tensor_kernel() -> None:
    copies = {decode(name).short for name in recorded("mlp-cudagraph") if decode(name).kind is Kind.COPY}
    assert copies == {"multi_tensor_apply_kernel<copy>"}


# --- GEMMs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backend", "dtype", "tile", "stages", "layout"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "cublaslt", "bf16", "256x128", "64x4", "TNT"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "cublaslt", "fp16", "256x128", "64x4", "NNT"),
        ("nvjet_hss_64x8_64x16_1x1_v_bz_splitK_NNT", "cublaslt", "fp16", "64x8", "64x16", "NNT"),
        (
            "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT",
            "cublaslt", "fp8", "128x256", "128x6", "TNT",
        ),
        (
            "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
            "cublas", "bf16", "128x128", "32x5", "tn",
        ),
        (
            "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn",
            "cublas", "fp16", "64x64", "64x5", "tn",
        ),
        ("ampere_sgemm_32x32_sliced1x4_tn", "cublas", "fp32", "32x32", None, "tn"),
        ("volta_h884gemm_64x64_ldg8_nn", "cublas", "fp16", "64x64", None, "nn"),
        (
            ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
            "execute_kernel__5x_cublas"),
            "cublas", "fp32", "128x128", "8x3", "tn",
        ),
        (
            ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_"
            "execute_segment_k_off_kernel__5x_cublas"),
            "cublas", "tf32", "128x128", None, "tn",
        ),
        (
            "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8",
            "cutlass", "bf16", "32x32", "32x1", "tn",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)",
            "cutlass", "bf16", "256x128", "32x3", "tn",
        ),
        (
            "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_32x6_tn_align8EEvNT_6ParamsE",
            "cutlass", "bf16", "128x64", "32x6", "tn",
        ),
        ("cutlass_80_wmma_tensorop_s161616gemm_f16_32x32_64x2_nn_align2", "cutlass", "fp16", "32x32", "64x2", "nn"),
        ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "cutlass", "tf32", "256x128", "16x3", "nn"),
        (
            "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu",
            "cutlass", "fp32", "128x64", "16x3", "tnn",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x208x64_MI16x16x1_SN_LDSB1_AFC0.kd",
            "tensile", "bf16", "256x208", None, "tn",
        ),
    ],
)  # fmt: skip
def test_a_gemm_says_its_types_tile_stages_and_layout(
    name: str, backend: str, dtype: str, tile: str, stages: str | None, layout: str
) -> None:
    decoded = decode(name)
    assert decoded.kind is Kind.GEMM
    assert (decoded.backend, decoded.dtype) == (backend, dtype)
    assert (decoded.tile, decoded.stages, decoded.layout) == (tile, stages, layout)


def test_nvjet_type_letters_without_a_source_are_not_guessed() -> None:
    assert decode("nvjet_sm90_xyz_256x128_64x4_1x2_h_bz_coopA_TNT").dtype is None


def test_tensor_core_sgemm_has_no_dtype() -> None:
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(T1::Params)"
    assert decode(name).dtype is None


def test_a_bias_is_seen_as_a_word_of_the_name_only() -> None:
    assert decode("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT").bias_epilogue
    assert not decode("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT").bias_epilogue
    assert not decode("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_unbiased_TNT").bias_epilogue


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, "
            "__nv_bfloat16, float, false, true, true, false, 7, false, cublasGemvParamsEx<int> >(int)"),
            "gemvx::kernel",
        ),
        ("void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>(int)", "gemv2T_kernel_val"),
        ("gemmSN_NN_kernel", "gemmSN_NN_kernel"),
        ("void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int)", "magma_sgemmEx_kernel"),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >(P)",
            "device_kernel<GemmUniversal>",
        ),
    ],
)  # fmt: skip
def test_small_and_templated_gemms_are_gemms(name: str, short: str) -> None:
    assert (decode(name).kind, decode(name).short) == (Kind.GEMM, short)


# --- Inductor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "ops"),
    [
        (
            "triton_poi_fused__unsafe_view_gelu_gelu_backward_mul_view_0",
            Kind.POINTWISE, ("_unsafe_view", "gelu", "gelu_backward", "mul", "view"),
        ),
        (
            "triton_red_fused__fused_rms_norm__to_copy_add_mul_select_unsqueeze_1",
            Kind.REDUCTION, ("_fused_rms_norm", "_to_copy", "add", "mul", "select", "unsqueeze"),
        ),
        (
            "triton_red_fused_native_layer_norm_native_layer_norm_backward_relu_10",
            Kind.REDUCTION, ("native_layer_norm", "native_layer_norm_backward", "relu"),
        ),
        ("triton_per_fused_4", Kind.REDUCTION, ()),
        ("triton_for_fused_1", Kind.POINTWISE, ()),
        ("triton_spl_fused__to_copy_cumsum_gt_mul_0", Kind.REDUCTION, ("_to_copy", "cumsum", "gt", "mul")),
        ("triton_unk_fused_mul_0", Kind.OTHER, ("mul",)),
        ("triton_unk_fused_add_sum_0", Kind.REDUCTION, ("add", "sum")),
        ("triton_tem_fused__to_copy_addmm_gelu_t_view_9", Kind.GEMM, ("_to_copy", "addmm", "gelu", "t", "view")),
        ("triton_tem_fused_flex_attention_backward_2", Kind.ATTENTION, ("flex_attention_backward",)),
        ("triton_tem_fused__to_copy_convolution_2", Kind.CONVOLUTION, ("_to_copy", "convolution")),
        ("triton_tem_fused_0", Kind.OTHER, ()),
        ("model_triton_poi_fused_add_copy__3", Kind.POINTWISE, ("add", "copy_")),
        ("triton_poi__3", Kind.POINTWISE, ()),
    ],
)  # fmt: skip
def test_inductor_names_give_category_merged_ops_and_number(name: str, kind: Kind, ops: tuple[str, ...]) -> None:
    decoded = decode(name)
    assert (decoded.backend, decoded.kind, decoded.ops) == ("inductor-triton", kind, ops)
    assert decoded.graph_id == int(name.rsplit("_", 1)[1])


def test_a_pointwise_kernel_that_took_over_a_gemms_epilogue_is_no_gemm() -> None:
    assert decode("triton_poi_fused_add_addmm_gelu_mul_0").kind is Kind.POINTWISE


def test_inductor_cpp_kernel_sheds_the_graph_number() -> None:
    decoded = decode("graph_7_cpp_fused__unsafe_view_gelu_mul_0")
    assert (decoded.backend, decoded.kind) == ("inductor-cpp", Kind.POINTWISE)
    assert (decoded.short, decoded.graph_id) == ("cpp_fused__unsafe_view_gelu_mul_0", 0)
    assert decoded.ops == decode("cpp_fused__unsafe_view_gelu_mul_0").ops == ("_unsafe_view", "gelu", "mul")
    assert decode("cpp_fused_native_layer_norm_3").kind is Kind.REDUCTION


@pytest.mark.parametrize(
    ("name", "backend", "kind"),
    [
        ("triton_mm_12", "inductor-triton", Kind.GEMM),
        ("triton_flex_attention", "inductor-triton", Kind.ATTENTION),
        ("triton__0d1d2de", "inductor-triton", Kind.OTHER),
        ("cutlass_fused_addmm_relu_0a1b2c3d", "inductor-cutlass", Kind.GEMM),
        ("nv_universal_gemm_fused_mm_0a1b2c3d", "inductor-nv-universal-gemm", Kind.GEMM),
    ],
)
def test_inductors_templates_name_their_own_backend(name: str, backend: str, kind: Kind) -> None:
    assert (decode(name).backend, decode(name).kind) == (backend, kind)


def test_a_custom_op_among_known_ones_keeps_its_underscores() -> None:
    assert split_ops("_npu_dtype_cast__softmax_add") == ("_npu_dtype_cast", "_softmax", "add")
    assert split_ops("add_scaled_fp4_quant") == ("add", "scaled_fp4_quant")


def test_an_in_place_name_keeps_its_trailing_underscore() -> None:
    assert split_ops("add_copy_") == ("add", "copy_")
    assert split_ops("relu__sum") == ("relu_", "sum")


def test_splitting_ops_loses_no_character() -> None:
    choose = random.Random(0)
    words = [*sorted(OPS), "", "_", "custom", "my_op"]
    for _ in range(5000):
        merged = "_".join(choose.choice(words) for _ in range(choose.randint(0, 7)))
        assert "_".join(split_ops(merged)) == merged


# --- everything else -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backend", "kind", "short"),
    [
        (GELU, "aten", Kind.POINTWISE, "vectorized_elementwise_kernel<gelu>"),
        (COPY_IN_NSIGHT, "aten", Kind.COPY, "unrolled_elementwise_kernel<copy>"),
        (
            ("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, bool, "
            "at::native::(anonymous namespace)::CompareEqFunctor<float> >, std::array<char*, 2ul> >(int)"),
            "aten", Kind.POINTWISE, "vectorized_elementwise_kernel<eq>",
        ),
        (
            ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, "
            "unsigned int, float, 4> >(at::native::ReduceOp<float>)"),
            "aten", Kind.REDUCTION, "reduce_kernel<mean>",
        ),
        (
            ("void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
            "at::native::<unnamed>::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(T1)"),
            "aten", Kind.POINTWISE, "multi_tensor_apply_kernel<add>",
        ),
        (
            ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::"
            "index_kernel_impl<at::native::OpaqueType<2> >(at::TensorIteratorBase&)::{lambda(char*)#1}>(x)>(long)"),
            "aten", Kind.INDEX, "index_elementwise_kernel<index>",
        ),
        (
            ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::"
            "OpaqueType<2u>, unsigned int, 2, 128, 1>(int)"),
            "aten", Kind.COPY, "CatArrayBatchedCopy_contig",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)",
            "aten", Kind.NORM, "vectorized_layer_norm_kernel",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 9, false, false>(x)",
            "aten", Kind.REDUCTION, "softmax_warp_forward",
        ),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2>(x)",
            "aten", Kind.INDEX, "indexSelectLargeIndex",
        ),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(x)", "aten", Kind.OTHER, "gatherTopK"),
        ("void cublasLt::epilogue::impl::globalKernel<8, 32, float>(int)", "cublaslt", Kind.POINTWISE,
         "impl::globalKernel"),
        (FLASH, "flash", Kind.ATTENTION, "flash_fwd_kernel"),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::half_t> > >(x)",
            "flash", Kind.ATTENTION, "device_kernel<FlashAttnFwdSm90>",
        ),
        (
            "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
            "mem-efficient", Kind.ATTENTION, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x256_4x1x1_cga1x1x1_kernel0_0",
            "cudnn", Kind.ATTENTION, "cudnn_generated_fort_native_sdpa_sm90_..._cga1x1x1_kernel0_0",
        ),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>(int)", "cudnn", Kind.NORM,
         "bn_fw_tr_1C11_kernel_NCHW"),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>(int)", "cudnn", Kind.COPY, "nchwToNhwcKernel"),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_64x64_32x5_nhwc_align4>(P)",
            "cudnn", Kind.CONVOLUTION, "cutlass_tensorop_s1688fprop_optimized_...64_32x5_nhwc_align4",
        ),
        ("volta_scudnn_128x128_relu_small_nn_v1", "cudnn", Kind.CONVOLUTION, "volta_scudnn_128x128_relu_small_nn_v1"),
        ("void implicit_convolve_sgemm<float, float, 1024, 5>(int)", "cudnn", Kind.CONVOLUTION,
         "implicit_convolve_sgemm"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "nccl", Kind.COMMUNICATION, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (
            "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
            "nccl", Kind.COMMUNICATION, "ncclDevKernel_Generic_1",
        ),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)", "other", Kind.COMMUNICATION,
         "cross_device_reduce_1stage"),
        ("Memcpy DtoD (Device -> Device)", "runtime", Kind.MEMCPY, "Memcpy DtoD (Device -> Device)"),
        ("[CUDA memset]", "runtime", Kind.MEMSET, "[CUDA memset]"),
        ("__amd_rocclr_copyBuffer.kd", "runtime", Kind.MEMCPY, "__amd_rocclr_copyBuffer"),
        ("_swiglu_backward_kernel", "liger", Kind.POINTWISE, "_swiglu_backward_kernel"),
        ("_rms_norm_forward_kernel", "liger", Kind.NORM, "_rms_norm_forward_kernel"),
        ("liger_cross_entropy_kernel", "liger", Kind.REDUCTION, "liger_cross_entropy_kernel"),
        ("_attn_fwd", "triton", Kind.ATTENTION, "_attn_fwd"),
        ("_gumbel_sample_kernel", "triton", Kind.OTHER, "_gumbel_sample_kernel"),
    ],
)  # fmt: skip
def test_a_name_gives_backend_kind_and_something_to_print(name: str, backend: str, kind: Kind, short: str) -> None:
    decoded = decode(name)
    assert (decoded.backend, decoded.kind, decoded.short) == (backend, kind, short)


def test_nsights_spelling_of_a_kernel_decodes_as_kinetos() -> None:
    kineto = decode(GELU)
    nsight = decode(GELU.replace("<8,", "<(int)8,").replace("char*", "char *").replace("2ul", "(unsigned long)2"))
    assert (nsight.kind, nsight.short, nsight.ops, nsight.dtype) == (
        kineto.kind, kineto.short, kineto.ops, kineto.dtype,
    )  # fmt: skip


def test_a_flash_kernel_says_its_block_and_type() -> None:
    assert (decode(FLASH).tile, decode(FLASH).dtype) == ("128x32", "fp16")


def test_a_collective_says_what_it_does_and_on_what() -> None:
    decoded = decode("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert (decoded.ops, decoded.dtype) == (("reduce_scatter",), "bf16")


def test_a_backward_kernel_is_another_op_than_its_forward() -> None:
    assert decode("_geglu_tanh_forward_kernel").ops == ("geglu_tanh",)
    assert decode("_geglu_tanh_backward_kernel").ops == ("geglu_tanh_backward",)
    assert decode("_bwd_kernel").ops == ()


# --- names that nobody vouches for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["my_kernel", "operator new", "<<<unparseable>>>", "a b c", "_ZN3foo3barEv", "x" * 500]
)
def test_an_unknown_name_is_other_and_still_printable(name: str) -> None:
    decoded = decode(name)
    assert (decoded.raw, decoded.kind, decoded.backend) == (name, Kind.OTHER, "other")
    assert decoded.short


@pytest.mark.parametrize("name", ["", " ", "\n", "\x00", "::", "<>", "()", "void ", "(int)", "void <", "triton_", "_"])
def test_a_name_that_says_nothing_still_has_something_to_print(name: str) -> None:
    assert decode(name).short.strip()
    assert decode(name).raw == name


@pytest.mark.parametrize("evil", ["\x1b[2J", "\r\n", "\x07", "\u202e", "\u200b", "\ud800", "\x9b31m", "\u2028"])
@pytest.mark.parametrize(
    "around", ["{}kernel", "ker{}nel", "triton_poi_fused_{}add_0", "void at::native::{}reduce_kernel<float>(int)", "{}"]
)
def test_what_is_printed_holds_no_control_character(around: str, evil: str) -> None:
    name = around.format(evil)
    decoded = decode(name)
    assert decoded.raw == name
    assert decoded.short.isprintable()
    assert all(text.isprintable() for text in (*decoded.ops, decoded.backend))


def test_a_number_too_long_for_a_number_is_left_alone() -> None:
    assert decode("triton_poi_fused_add_" + "9" * 5000).graph_id is None
    assert decode("Cijk_Alik_Bljk_BBS_MT1x1x1_GSU" + "9" * 5000 + "_").kind is Kind.GEMM


def test_digits_of_other_scripts_are_no_digits() -> None:
    assert decode("triton_poi_fused_add_\u0661").graph_id is None
    assert decode("ampere_sgemm_\u0661x\u0661_tn").tile is None


REPEATED = (
    "_", "a", "::", "<", "(", ")", " ", "1x1_", "1d", "_1d", "a<b>::", "_triton_poi_fused_", "mm", "gelu_", "_to_copy",
    "_cpp_fused_", "cudnn::", "at::layer_norm", "cutlass::Kernel<cutlass_", "cutlass_gemm_1x1_", "elementwise_kernel",
    "Functor", "_kernel", "_cuda_out", "launch_", "rms_norm_forward_", "_mhc_fwd", "one_shot_", "gemm", "_fprop",
    "ampere_", "_MT1x1x1_GSU1", "(anonymous namespace)::", "(int)4", "operator", "kernel_traits<1, 1, 1", "_tn", "\n",
)  # fmt: skip


@pytest.mark.parametrize(
    "start", ["", "triton_poi_fused_", "void at::native::elementwise_kernel<", "cutlass_", "nvjet_a_"]
)
@pytest.mark.parametrize("end", ["", "-", ")"])
def test_a_hundred_thousand_characters_are_decoded_in_linear_time(start: str, end: str) -> None:
    for fragment in REPEATED:
        name = start + fragment * (100_000 // len(fragment)) + end
        began = time.perf_counter()
        assert len(decode.__wrapped__(name).short) <= 60
        # 0.1 s at the worst when written; a quadratic rule takes minutes.
        assert time.perf_counter() - began < 5, fragment


def test_random_mixtures_of_real_names_never_raise() -> None:
    choose = random.Random(1)
    names = [GELU, COPY_IN_NSIGHT, FLASH, *(name for trace in TRACES for name in recorded(trace.name[:-8]))]
    for _ in range(3000):
        left, right = choose.choice(names), choose.choice(names)
        mixed = left[choose.randrange(len(left)) :] + right[: choose.randrange(len(right))]
        decoded = decode(mixed)
        assert decoded.raw == mixed
        assert 0 < len(decoded.short) <= 60


# --- the module itself ---------------------------------------------------------------------------------------------


def test_every_rule_names_its_source() -> None:
    assert all(rule.source for rule in RULES)


def test_decoding_imports_neither_torch_nor_pytest() -> None:
    code = "import sys, kernelgauge.trace.names; sys.exit(any(m in sys.modules for m in ('torch', 'pytest')))"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
