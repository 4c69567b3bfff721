"""A GPU kernel's name decoded: what it does, who made it, and a name short enough to print.

Names come from traces, so they are untrusted: `decode` accepts any string, in time linear in its length, and only
`raw` keeps what is unprintable. A rule that matches nothing more specific says `Kind.OTHER`: nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from .aten_names import aten_functor
from .cpp_names import Build, Parsed, base_name, clip, cpp, parse_name, plain
from .inductor_names import inductor_autotuned, inductor_cpp, inductor_template, inductor_triton
from .kernel_name import KernelName, Kind
from .library_names import cutlass3, flash, library, mem_efficient, nccl, nvjet, splitk_reduce, tensile
from .triton_names import triton_kernel

__all__ = ["RULES", "KernelName", "Kind", "Rule", "decode"]


class _Scope(Enum):
    """What a rule's pattern is held against. On identifiers alone, `\\w*word\\w*` needs no more than linear time."""

    TEXT = "searched for in the whole name"
    HEAD = "searched for in the qualified name"
    BASE = "all of the qualified name's last part"
    BARE = "all of a name that is one identifier"


@dataclass(frozen=True)
class Rule:
    """One way to recognise names; the first rule of the table that matches wins."""

    scope: _Scope
    pattern: re.Pattern[str]
    source: str  # where the rule comes from
    build: Build

    def match(self, name: Parsed) -> re.Match[str] | None:
        """Hold the pattern against the part of the name that `scope` says."""
        if self.scope is _Scope.TEXT:
            return self.pattern.search(name.text)
        if self.scope is _Scope.HEAD:
            return self.pattern.search(name.head)
        if not name.base or (self.scope is _Scope.BARE and name.base != name.text):
            return None
        return self.pattern.fullmatch(name.base)


def _rule(scope: _Scope, pattern: str, source: str, build: Build) -> Rule:
    return Rule(scope, re.compile(pattern, re.ASCII), source, build)


_TEXT, _HEAD, _BASE, _BARE = _Scope.TEXT, _Scope.HEAD, _Scope.BASE, _Scope.BARE
_LIGER = (
    r"liger_\w+|element_mul_kernel|_(?:triton_(?:llama4_rope|qwen2vl_mrope|rope)|selective_log_softmax_kernel"
    r"|(?:kldiv|jsd|tv_distance)_kernel(?:_forward|_backward)?|(?:dyt|grpo_loss|attn_res|mhc_\w+)_(?:fwd|bwd)\w*"
    r"|(?:geglu|geglu_tanh|swiglu|relu_squared|(?:block_|fused_add_|modulated_)?rms_norm|poly_norm|layer_norm"
    r"|group_norm|sparsemax|softmax_(?:single|multi)_block)_(?:forward|backward)_\w*kernel\w*)"
)
_ARCH = r"(?:trt_)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)"
_H200 = "seen on H200, torch 2.11"
_PUBLIC = "public profiles"
_ATEN = "aten/src/ATen/native/cuda"
_INDUCTOR = "torch/_inductor"
_RESNET = "cuDNN 7 and 8, in traces of HolisticTraceAnalysis: tests/data"
_FBGEMM = "FBGEMM: fbgemm_gpu/src; traces of HolisticTraceAnalysis: tests/data"

# fmt: off
RULES: tuple[Rule, ...] = (
    # Rows of the profiler that are no kernels, and the kernels that ROCm runs in their place.
    _rule(_TEXT, r"^(?:Memset\b|\[CUDA memset|__amd_rocclr_fillBuffer)", _H200, plain(Kind.MEMSET, "runtime")),
    _rule(_TEXT, r"^(?:Memcpy\b|\[CUDA memcpy|__amd_rocclr_copyBuffer)", _PUBLIC, plain(Kind.MEMCPY, "runtime")),

    # Inductor. Anything may precede "triton_": AOTInductor puts the model's name there.
    _rule(_BARE, r"(?:\w*?_)??triton_(?P<category>for|per|poi|red|spl|tem|unk)_(?:fused(?:_|$))?(?P<rest>\w*)",
          f"{_INDUCTOR}/codegen/triton.py: define_kernel", inductor_triton),
    _rule(_BARE, r"(?:graph_\d+_)?(?P<name>(?:\w*?_)??cpp_fused(?:_|$)(?P<rest>\w*))",
          f"{_INDUCTOR}/codegen/cpp.py: define_kernel, codegen_group", inductor_cpp),
    _rule(_BARE, r"(?P<backend>cutlass|cutedsl|nv_universal_gemm|pallas|rocm)_(?:fused_(?P<rest>\w+)_)?[0-9a-f]{8}",
          f"{_INDUCTOR}/codegen: define_kernel of the template backends", inductor_template),
    _rule(_BARE, r"triton_(?P<rest>\w*mm\w*|flex_\w+|convolution\w*)",
          f"{_INDUCTOR}/select_algorithm.py: a template while it is autotuned", inductor_autotuned),
    _rule(_BARE, r"triton_(?:_[0-9cde]+)?",
          f"{_INDUCTOR}/config.py: triton.unique_kernel_names = False", plain(Kind.OTHER, "inductor-triton")),

    # Communication.
    _rule(_BASE, r"nccl(?:Sym|Symk)?(?:Dev)?Kernel_(?P<op>[A-Za-z]+)\w*", "NCCL: src/device/generate.py", nccl),
    _rule(_BASE, r"multimem_\w+|\w*(?:one|two)_?shot_\w+|cross_device_reduce\w*|nvshmem\w*", _PUBLIC,
          cpp(Kind.COMMUNICATION, "other")),

    # Attention, before the libraries that its kernels are built with.
    _rule(_BASE, r"flash_(?:fwd|bwd)\w*", "flash-attention: flash_fwd_launch_template.h", flash),
    _rule(_BASE, r"fmha_cutlass[FB]_(?P<dtype>[a-z0-9]+)_(?:[a-z]+_)?(?P<tile>\d{1,5}x\d{1,5})\w*",
          f"{_ATEN}: transformers/cuda/mem_eff_attention/kernels", mem_efficient),
    _rule(_BASE, r"attention_kernel\w*", f"{_ATEN}: mem_eff_attention", cpp(Kind.ATTENTION, "mem-efficient")),
    _rule(_BARE, r"(?:kernel_cutlass_kernel_|flash_)\w*(?:flash_attn|[Ff]lash_?[Aa]ttention)\w*", _PUBLIC,
          plain(Kind.ATTENTION, "flash")),
    _rule(_BARE, r"cudnn_generated_\w*sdpa\w*", _PUBLIC, plain(Kind.ATTENTION, "cudnn")),

    # cuDNN, before the libraries that its kernels are built with.
    _rule(_BARE, r"cudnn_generated_\w*conv\w*", _PUBLIC, library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, r"cudnn_generated_\w*(?:matMul|gemm)\w*", _PUBLIC, library(Kind.GEMM, "cudnn")),
    _rule(_TEXT, r"\bcutlass__5x_cudnn::Kernel<(?P<name>cutlass_\w+)", _PUBLIC, library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, r"_ZN17cutlass__5x_cudnn\d+KernelI\d+(?P<name>cutlass_\w+?_align\d+)\w*", f"{_PUBLIC}, not demangled",
          library(Kind.CONVOLUTION, "cudnn")),
    _rule(_TEXT, r"^(?:void )?cutlass_cudnn\w*::Kernel<cutlass_cudnn\w*::reduction::kernel::ReduceSplitK", _RESNET,
          cpp(Kind.SPLITK_REDUCE, "cudnn")),
    _rule(_TEXT, r"^(?:void )?cutlass_cudnn\w*::Kernel<(?P<name>cutlass_\w+)", _RESNET,
          library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, r"_ZN\d+cutlass_cudnn\w*ImplicitGemmConvolution\w*", f"{_RESNET}, not demangled",
          plain(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, rf"cudnn_(?:infer|train)_{_ARCH}_(?P<name>\w*cudnn_\w*)", _RESNET, library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, rf"sm\d+_xmma_\w*(?:fprop|dgrad|wgrad)\w*|(?:cudnn_)?{_ARCH}_\w*cudnn_\w*", _PUBLIC,
          library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BASE, r"(?:im|ex)plicit_convolve\w*|\w*winograd\w*|[dw]grad\w*|conv\w*_grouped_direct\w*", _PUBLIC,
          cpp(Kind.CONVOLUTION, "cudnn")),
    _rule(_BASE, r"(?:nchwToNhwc|nhwcToNchw|nhwcToFoldedNhwc|nchwAddPadding)\w*", _PUBLIC, cpp(Kind.COPY, "cudnn")),
    _rule(_HEAD, r"^cudnn::(?:\w+::)*(?:bn_|batchnorm)", _PUBLIC, cpp(Kind.NORM, "cudnn", "batch_norm")),
    _rule(_BASE, r"compute_dot_do_o\w*", _PUBLIC, cpp(Kind.ATTENTION, "cudnn")),
    _rule(_BASE, r"reduce_wgrad_\w+", _RESNET, cpp(Kind.REDUCTION, "cudnn")),
    _rule(_HEAD, r"^cudnn::winograd::", _RESNET, cpp(Kind.CONVOLUTION, "cudnn")),
    _rule(_HEAD, r"^(?:cask_|cutlass_)?cudnn\w*(?:::|_)", _RESNET, cpp(Kind.OTHER, "cudnn")),

    # cuBLAS and cuBLASLt.
    _rule(_BARE, r"nvjet_(?:sm\d+[a-z]?_)?(?P<types>[a-z]+)_\w*", _H200, nvjet),
    _rule(_BASE, r"splitKreduce_kernel", _H200, splitk_reduce),
    _rule(_HEAD, r"^(?:cublasLt::)?epilogue::", _PUBLIC, cpp(Kind.POINTWISE, "cublaslt")),
    _rule(_BARE, rf"{_ARCH}_\w*gemm\w*", f"seen on A100; {_PUBLIC}", library(Kind.GEMM, "cublas")),
    _rule(_BARE, r"sm\d+_xmma_gemm_\w*", _H200, library(Kind.GEMM, "cublas")),
    _rule(_HEAD, r"\bgemvx::kernel$|^cublasLt::", _PUBLIC, cpp(Kind.GEMM, "cublas")),
    _rule(_BASE, r"gemv\w*|gemm(?:SN|k1)_\w+|magma_\w*gemm\w*", _PUBLIC, cpp(Kind.GEMM, "cublas")),

    # CUTLASS. A 2.x kernel carries its name as template argument; cuBLAS ships some without that wrapper.
    _rule(_TEXT, r"\bcutlass::Kernel2?<(?P<name>cutlass_\w+)", _PUBLIC, library(Kind.GEMM, "cutlass")),
    _rule(_BARE, r"cutlass(?:3x)?_\w*(?:gemm|fprop|dgrad|wgrad)\w*", "cutlass: media/docs/profiler.md",
          library(Kind.GEMM, "cutlass")),
    _rule(_BARE, r"_ZN7cutlass\d+Kernel2?I\d+(?P<name>cutlass_\w+?_align\d+)\w*", f"{_PUBLIC}, not demangled",
          library(Kind.GEMM, "cutlass")),
    _rule(_HEAD, r"\bcutlass::device_kernel$", "cutlass: include/cutlass/device_kernel.h", cutlass3),

    # ROCm.
    _rule(_BARE, r"(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<types>[A-Z0-9]+)_\w*",
          "ROCm/Tensile wiki: Kernel Parameters", tensile),
    _rule(_HEAD, r"^ck(?:_tile)?::(?:\w+::)*kernel_\w*gemm", _PUBLIC, cpp(Kind.GEMM, "composable-kernel")),

    # ATen.
    _rule(_BASE, r"multi_tensor_apply_kernel", _H200, aten_functor(Kind.POINTWISE)),
    _rule(_BASE, r"reduce_kernel", _H200, aten_functor(Kind.REDUCTION)),
    _rule(_BASE, r"\w*scatter_gather_elementwise_kernel", _ATEN, cpp(Kind.INDEX, "aten", "scatter_gather")),
    _rule(_BASE, r"index_elementwise_kernel", _ATEN, aten_functor(Kind.INDEX)),
    _rule(_BASE, r"\w*elementwise_kernel\w*|distribution_elementwise\w+", _H200, aten_functor(Kind.POINTWISE)),
    _rule(_BASE, r"CatArrayBatchedCopy\w*", _ATEN, cpp(Kind.COPY, "aten", "cat")),
    _rule(_BASE, r"split_with_sizes_copy\w*", _ATEN, cpp(Kind.COPY, "aten", "split_with_sizes_copy")),
    _rule(_BASE, r"index(?:Select|Func)(?:Large|Small)Index|indexing_backward\w*|vectorized_gather_kernel"
          r"|embedding_backward_feature_kernel|EmbeddingBag_\w+|compute_grad_weight\w*", _ATEN,
          cpp(Kind.INDEX, "aten")),
    _rule(_BASE, r"cunn_(?:Spatial)?SoftMax\w*|softmax_warp_(?:forward|backward)", _ATEN,
          cpp(Kind.REDUCTION, "aten", "softmax")),
    _rule(_HEAD, r"^at::(?:\w+::)*\w*(?:layer_norm|LayerNorm|cuCompute|GammaBeta|RowwiseMoments)", _ATEN,
          cpp(Kind.NORM, "aten")),
    _rule(_HEAD, r"^at::(?:\w+::)*batch_norm_", _ATEN, cpp(Kind.NORM, "aten", "batch_norm")),
    _rule(_BASE, r"(?P<op>nll_loss)\w*|tensor_kernel_scan_\w+", _ATEN, cpp(Kind.REDUCTION, "aten")),
    _rule(_BASE, r"fused_dropout_kernel\w*", _ATEN, cpp(Kind.POINTWISE, "aten", "dropout")),
    _rule(_BASE, r"(?P<op>triu_tril)_kernel", _ATEN, cpp(Kind.POINTWISE, "aten")),
    _rule(_BASE, r"(?P<op>im2col|col2im|vol2col|conv_depthwise[23]d)_\w*", _ATEN, cpp(Kind.CONVOLUTION, "aten")),
    _rule(_HEAD, r"^(?:at|c10)::", _ATEN, cpp(Kind.OTHER, "aten")),
    _rule(_BASE, r"Device(?:Segmented)?Reduce\w*", "CUB: device/dispatch/dispatch_reduce.cuh", cpp(Kind.REDUCTION, "cub")),
    _rule(_HEAD, r"^(?:at_cuda_detail::)?(?:cub|thrust|rocprim|hipcub)::", _PUBLIC, cpp(Kind.OTHER, "cub")),

    # FBGEMM's embedding tables and the sparse features that index them.
    _rule(_HEAD, r"^fbgemm_gpu::|^split_embedding_|^(?:permute_pooled_embs|bounds_check_indices|linearize_index)\w*kernel",
          _FBGEMM, cpp(Kind.INDEX, "fbgemm")),

    # Hand-written Triton: bare identifiers, as `extern "C"` kernels are too; the leading "_" is Triton's custom alone.
    _rule(_BARE, _LIGER, "Liger-Kernel: src/liger_kernel/ops", triton_kernel("liger")),
    _rule(_BARE, r"_(?![A-Z])\w*(?:kernel|fwd|bwd|forward|backward)\w*", _PUBLIC, triton_kernel("triton")),
    _rule(_BARE, r"triton_\w+", _PUBLIC, triton_kernel("triton")),
)
# fmt: on


def _other(name: Parsed) -> KernelName:
    return KernelName(name.raw, Kind.OTHER, "other", clip(base_name(name)))


@lru_cache(maxsize=4096)
def decode(raw: str) -> KernelName:
    """Decode a kernel's name. Never raises; a name that no rule knows is `Kind.OTHER` of backend "other"."""
    name = parse_name(raw)
    for rule in RULES:
        match = rule.match(name)
        if match:
            return rule.build(name, match)
    return _other(name)
