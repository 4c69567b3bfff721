"""What the traces of the workloads show, and on which architecture and configuration it was seen.

Names are declared only for what was seen: on an A100 in the article, on an H200 with torch 2.11 and
CUDA 13.0 (the library that picks a GEMM ships with CUDA), and on a CPU from torch 2.6.0 on
(Inductor ships with torch). On any other GPU the kinds and their order still hold.
"""

from __future__ import annotations

from kernelgauge import Expectation

_ARTICLE = "article, NVIDIA A100-SXM4-80GB"
_H200 = "seen on NVIDIA H200, torch 2.11.0, CUDA 13.0"
_HOPPER = "seen on NVIDIA H200 and H100, torch 2.11.0, CUDA 13.0"
_ANY_GPU = "what the module computes, on any GPU"
_CPU = "what the module computes, on a CPU (torch 2.6.0 to 2.13.0)"

# Inductor names a fused kernel after the ops that it merges. Until torch 2.8 it leaves out the view
# that it merges too.
_VIEW_NAMED, _VIEW_UNNAMED = ">=2.9", "<2.9"
_CPU_VIEW_NAMED = "seen on a CPU, torch 2.9.0, 2.11.0 and 2.13.0"
_CPU_VIEW_UNNAMED = "seen on a CPU, torch 2.6.0, 2.7.0 and 2.8.0"

_FUSED = "triton_poi_fused__unsafe_view_gelu_mul_0"
_CPP_FUSED = "cpp_fused__unsafe_view_gelu_mul_0"
_CPP_FUSED_VIEW_UNNAMED = "cpp_fused_gelu_mul_0"

# The rows of the host's lane between the call of compiled code and its first kernel, and the torch
# that adds them.
PRE_OPS = {
    "TorchDynamo Cache Lookup": "2.6",
    "Torch-Compiled Region": "2.6",
    "AOTDispatcher Runtime Wrapper Prologue": "2.8",
}

_GELU = "*GeluCUDAKernelImpl*"
_MUL = "*MulFunctor*"

# The 64 KiB x 3 layers of the seeds, on Hopper: cuBLASLt's own kernels.
_GATE_UP = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
_DOWN = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT"
# The same on Ampere: the article gives these parts of the names.
_GATE_UP_SM80 = "*128x128*stages_32x5_tn"
_DOWN_SM80 = "*128x256*stages_64x3_tn"

_EX, _DRIVER, _RUNTIME = "cuLaunchKernelEx*", "cuLaunchKernel*", "cudaLaunchKernel*"

ONE_GEMM_WITH_BIAS = (
    Expectation(_ANY_GPU, arch="gpu", kinds=("gemm",)),
    Expectation(_CPU, arch="cpu", kinds=("gemm",), names=("aten::addmm",)),
)

MATMUL_ADD_EAGER_KINDS = (
    Expectation(_ANY_GPU, arch="gpu", kinds=("gemm", "pointwise")),
    Expectation(_CPU, arch="cpu", kinds=("gemm", "pointwise"), names=("aten::mm", "aten::add")),
)

MATMUL_ADD_EAGER = (
    *MATMUL_ADD_EAGER_KINDS,
    Expectation(
        _HOPPER,
        arch="sm_90",
        cuda="13.0",
        names=("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "*CUDAFunctor_add*"),
        memsets=0,
    ),
)

LINEAR = (
    *ONE_GEMM_WITH_BIAS,
    Expectation(
        _HOPPER,
        arch="sm_90",
        cuda="13.0",
        # The tile is 64x8 on an H200, and 8x64 on an H100.
        names=("nvjet_sm90_tst_*x*_64x16_*_bz_bias_TN[NT]",),
        memsets=0,
        launch_apis=(_EX,),
        occupancy_queries=0,
    ),
    Expectation(
        _ARTICLE,
        arch="sm_80",
        names=("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8",),
    ),
)

# Few rows and a long K: two launches on Hopper, the second one sums the parts. Elsewhere the
# library may choose not to.
LINEAR_SPLIT_K = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        kinds=("gemm", "splitk_reduce"),
        names=("nvjet_sm90_*_splitK_bias_TNT", "*cublasLt::splitKreduce_kernel*"),
    ),
    Expectation(_CPU, arch="cpu", kinds=("gemm",), names=("aten::addmm",)),
)

MLP_EAGER_KINDS = (
    Expectation(
        _ANY_GPU,
        arch="gpu",
        kinds=("gemm", "gemm", "pointwise", "pointwise", "gemm"),
        names=("*", "*", _GELU, _MUL, "*"),
    ),
    Expectation(
        _CPU,
        arch="cpu",
        kinds=("gemm", "gemm", "pointwise", "pointwise", "gemm"),
        names=("aten::mm", "aten::mm", "aten::gelu", "aten::mul", "aten::mm"),
    ),
)

MLP_COMPILED_KINDS = (
    Expectation(
        _ANY_GPU,
        arch="gpu",
        kinds=("gemm", "gemm", "pointwise", "gemm"),
        names=("*", "*", "triton_poi_fused_*gelu*_0", "*"),
    ),
    Expectation(
        _CPU,
        arch="cpu",
        kinds=("gemm", "gemm", "pointwise", "gemm"),
        names=("aten::mm", "aten::mm", "cpp_fused_*gelu*_0", "aten::mm"),
    ),
)

MLP_LIGER_KINDS = (
    Expectation(
        _ANY_GPU,
        arch="gpu",
        kinds=("gemm", "gemm", "pointwise", "gemm"),
        names=("*", "*", "_geglu_tanh_forward_kernel", "*"),
    ),
)

MLP_EAGER = (
    *MLP_EAGER_KINDS,
    Expectation(
        _HOPPER,
        arch="sm_90",
        cuda="13.0",
        names=(_GATE_UP, _GATE_UP, _GELU, _MUL, _DOWN),
        memsets=2,  # one before each 256x128 GEMM
        launch_apis=(_EX, _EX, _RUNTIME, _RUNTIME, _EX),
        occupancy_queries=0,
    ),
    Expectation(
        _ARTICLE,
        arch="sm_80",
        names=(_GATE_UP_SM80, _GATE_UP_SM80, _GELU, _MUL, _DOWN_SM80),
        launch_apis=("*", "*", _RUNTIME, _RUNTIME, "*"),
        occupancy_queries=3,  # one before each GEMM
    ),
)

MLP_COMPILED = (
    *MLP_COMPILED_KINDS,
    Expectation(_ANY_GPU, arch="gpu", torch=_VIEW_NAMED, names=("*", "*", _FUSED, "*")),
    Expectation(_CPU_VIEW_NAMED, arch="cpu", torch=_VIEW_NAMED, names=("*", "*", _CPP_FUSED, "*")),
    Expectation(
        _CPU_VIEW_UNNAMED,
        arch="cpu",
        torch=_VIEW_UNNAMED,
        names=("*", "*", _CPP_FUSED_VIEW_UNNAMED, "*"),
    ),
    Expectation(
        _HOPPER,
        arch="sm_90",
        cuda="13.0",
        names=(_GATE_UP, _GATE_UP, _FUSED, _DOWN),
        memsets=2,
        launch_apis=(_EX, _EX, _DRIVER, _EX),
        occupancy_queries=0,
    ),
    Expectation(
        _ARTICLE,
        arch="sm_80",
        torch=_VIEW_NAMED,
        names=(_GATE_UP_SM80, _GATE_UP_SM80, _FUSED, _DOWN_SM80),
    ),
)

MLP_LIGER = (
    *MLP_LIGER_KINDS,
    Expectation(
        _HOPPER,
        arch="sm_90",
        cuda="13.0",
        names=(_GATE_UP, _GATE_UP, "_geglu_tanh_forward_kernel", _DOWN),
        memsets=2,
        occupancy_queries=0,
    ),
    Expectation(
        _ARTICLE,
        arch="sm_80",
        names=(_GATE_UP_SM80, _GATE_UP_SM80, "_geglu_tanh_forward_kernel", _DOWN_SM80),
    ),
)


def _on_cpu(expectations: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    return tuple(expectation for expectation in expectations if expectation.arch == "cpu")


# One token: on Hopper the last GEMM (one row, K of 3072) splits K and needs a second launch to sum
# the parts.
_SPLIT_K_DOWN = ("*_splitK_TNT", "*cublasLt::splitKreduce_kernel*")

MLP_EAGER_ONE_TOKEN = (
    *_on_cpu(MLP_EAGER_KINDS),
    Expectation(_H200, arch="sm_90", cuda="13.0", names=("*", "*", _GELU, _MUL, *_SPLIT_K_DOWN)),
)
MLP_COMPILED_ONE_TOKEN = (
    *_on_cpu(MLP_COMPILED_KINDS),
    Expectation(_H200, arch="sm_90", cuda="13.0", names=("*", "*", _FUSED, *_SPLIT_K_DOWN)),
)
MLP_LIGER_ONE_TOKEN = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        names=("*", "*", "_geglu_tanh_forward_kernel", *_SPLIT_K_DOWN),
    ),
)

# Forward, sum, backward. The sum is a reduction, a fill (the gradient of the sum) and a copy that
# expands it.
_LOSS = ("reduction", "fill", "copy")

MLP_EAGER_TRAIN = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        kinds=(
            *("gemm", "gemm", "pointwise", "pointwise", "gemm"),
            *_LOSS,
            *("gemm", "copy", "gemm"),  # of down_proj: weight, then input
            *("pointwise", "pointwise", "pointwise"),  # of mul, twice, and of gelu
            # of up_proj and gate_proj: weights only, the input needs no gradient
            *("gemm", "gemm"),
        ),
        memsets=4,
    ),
)
MLP_COMPILED_TRAIN = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        kinds=(
            "gemm",
            "gemm",
            "pointwise",
            "gemm",
            *_LOSS,
            "gemm",
            "gemm",
            "pointwise",
            "gemm",
            "gemm",
        ),
        names=(
            "*",
            "*",
            _FUSED,
            *("*",) * 6,
            "triton_poi_fused__unsafe_view_gelu_gelu_backward_mul_view_0",
            "*",
            "*",
        ),
        memsets=4,
    ),
)
MLP_LIGER_TRAIN = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        kinds=(
            "gemm",
            "gemm",
            "pointwise",
            "gemm",
            *_LOSS,
            "gemm",
            "copy",
            "gemm",
            "pointwise",
            "gemm",
            "gemm",
        ),
        names=(
            *("*", "*", "_geglu_tanh_forward_kernel"),
            *("*",) * 7,
            *("_geglu_tanh_backward_kernel", "*", "*"),
        ),
        memsets=4,
    ),
)

# CUDA graphs: the input is copied to where the graph reads it, then one graph launch runs the rest.
MLP_CUDA_GRAPH = (
    Expectation(
        _H200,
        arch="sm_90",
        cuda="13.0",
        kinds=("copy", "gemm", "gemm", "pointwise", "gemm"),
        launch_apis=("cudaLaunchKernel", *("cudaGraphLaunch",) * 4),
        memsets=2,
    ),
)
