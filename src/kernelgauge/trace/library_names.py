"""The libraries' kernels: what cuBLAS, cuDNN, CUTLASS, Tensile, attention and NCCL write of tile, layout and dtype."""

from __future__ import annotations

import re

from .cpp_names import WORD, Build, Parsed, base_name, clip, cpp_dtype, snake_case
from .kernel_name import KernelName, Kind

__all__ = ["cutlass3", "flash", "library", "mem_efficient", "nccl", "nvjet", "splitk_reduce", "tensile"]

# --- GEMM names ----------------------------------------------------------------------------------------------------

_TILE = re.compile(r"(?:tilesize)?(?P<mn>\d{1,5}x\d{1,5})(?:x(?P<k>\d{1,5}))?", re.ASCII)
_STAGE_COUNT = re.compile(r"_stage(\d{1,3})_|_\d+x\d+x\d+_(\d{1,3})_[tn]{3}_", re.ASCII)
_TOKEN_DTYPES = {
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "f32": "fp32", "fp32": "fp32", "tf32": "tf32", "f64": "fp64",
    "bf16bf16": "bf16", "f16f16": "fp16", "f32f32": "fp32", "tf32f32": "tf32", "e4m3e4m3": "fp8", "e4m3bf16": "fp8", "e4m3f16": "fp8", "e4m3f32": "fp8", "i8i8": "int8",
}  # fmt: skip
_LETTER_DTYPES = {"s": "fp32", "d": "fp64", "h": "fp16"}  # BLAS: sgemm, dgemm, hgemm
# The first letters are those of A and B: `tst` ran on bf16 (seen on H200, torch 2.11), `hss` and `hsh` on fp16 with
# fp32 and fp16 outputs, `qqtst` on fp8 with a bf16 output (public profiles of cuBLASLt). Others are not decoded.
_NVJET_DTYPES = {"t": "bf16", "h": "fp16", "qq": "fp8"}
_NVJET_TYPES = re.compile(r"(?P<inputs>qq|[a-z])(?:s[a-z]|[a-z]s[a-z])")
_ARITHMETIC = re.compile(r"(?P<letter>[a-z]?)\d*(?P<types>bf16|tf32|f16)?(?:gemm|cudnn|fprop|dgrad|wgrad)", re.ASCII)
_SPLIT_K = re.compile(r"split_?k(?!reduce)", re.IGNORECASE)
_SPLIT_WORD = re.compile(r"[_<>()\s,:]+")


def _gemm_fields(name: str) -> tuple[str | None, str | None, str | None, bool, bool]:
    """tile, stages, layout, split_k, bias_epilogue of a library's GEMM or convolution name."""
    tokens = _SPLIT_WORD.split(name)
    tile = stages = layout = None
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        shape = _TILE.fullmatch(token)
        if shape and tile is None:
            tile, depth = shape["mn"], shape["k"]
            count = _STAGE_COUNT.search(name) if depth else None
            following_shape = _TILE.fullmatch(following)
            if count:
                stages = f"{depth}x{count[1] or count[2]}"
            elif following_shape and not following_shape["k"]:
                stages = following
        elif token == "stages" and _TILE.fullmatch(following):
            stages = following
        elif layout is None and re.fullmatch(r"[tn]{2,3}|[NT]{3}", token):
            layout = token
    return tile, stages, layout, bool(_SPLIT_K.search(name)), "bias" in tokens


def _token_dtype(name: str) -> str | None:
    """CUTLASS and cuBLAS write [output] arithmetic [inputs]: what follows the arithmetic comes first.

    `s1688gemm` alone is TF32 or an emulation of fp32, so it has no answer here.
    """
    tokens = _SPLIT_WORD.split(name)
    at = next((i for i, token in enumerate(tokens) if _ARITHMETIC.fullmatch(token)), -1)
    arithmetic = _ARITHMETIC.fullmatch(tokens[at]) if at >= 0 else None
    types = [_TOKEN_DTYPES[token] for token in tokens[at + 1 :] + tokens[: at + 1] if token in _TOKEN_DTYPES]
    if "tf32" in types or (arithmetic and arithmetic["types"] == "tf32"):
        return "tf32"
    if types:
        return types[0]
    if arithmetic and arithmetic["types"]:
        return _TOKEN_DTYPES[arithmetic["types"]]
    letter = arithmetic["letter"] if arithmetic else ""
    tensor_core = arithmetic is not None and any(c.isdigit() for c in tokens[at])
    return None if tensor_core and letter != "h" else _LETTER_DTYPES.get(letter)


def library(kind: Kind, backend: str) -> Build:
    """cuBLAS, cuDNN and CUTLASS names made of tokens; a group `name` in the pattern is the part that counts."""

    def build(name: Parsed, match: re.Match[str]) -> KernelName:
        text = match.groupdict().get("name") or name.text
        tile, stages, layout, split_k, bias = _gemm_fields(text)
        actual = Kind.CONVOLUTION if re.search(r"fprop|dgrad|wgrad|cudnn|convolve", text) else kind
        dtype = _token_dtype(text)
        return KernelName(name.raw, actual, backend, clip(text), (), dtype, tile, stages, layout, split_k, bias)

    return build


def nvjet(name: Parsed, match: re.Match[str]) -> KernelName:
    tile, stages, layout, split_k, bias = _gemm_fields(name.text)
    types = _NVJET_TYPES.fullmatch(match["types"])
    dtype = _NVJET_DTYPES.get(types["inputs"]) if types else None
    return KernelName(name.raw, Kind.GEMM, "cublaslt", clip(name.text), (), dtype, tile, stages, layout, split_k, bias)


def splitk_reduce(name: Parsed, _: re.Match[str]) -> KernelName:
    # No dtype: the first of its types is the accumulator's.
    return KernelName(name.raw, Kind.SPLITK_REDUCE, "cublaslt", clip(base_name(name)), split_k=True)


def tensile(name: Parsed, match: re.Match[str]) -> KernelName:
    shape = re.search(r"_MT([0-9]{1,5}x[0-9]{1,5})x[0-9]", name.text)
    split = re.search(r"_GSU([0-9]{1,3})_", name.text)  # GlobalSplitU
    layout = ("n" if match["a"] == "Ailk" else "t") + ("n" if match["b"] == "Bljk" else "t")
    dtype = {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["types"][:1])
    split_k = bool(split and int(split[1]) > 1)
    tile = shape[1] if shape else None
    return KernelName(name.raw, Kind.GEMM, "tensile", clip(name.text), (), dtype, tile, None, layout, split_k)


def cutlass3(name: Parsed, _: re.Match[str]) -> KernelName:
    """`device_kernel` is CUTLASS 3's one entry point: the template argument says what runs."""
    marks = ("Universal", "FlashAttn", "Fmha")
    what = next((word for word in WORD.findall(name.args) if any(mark in word for mark in marks)), "")
    if "FlashAttn" in what or "Fmha" in what or "fmha" in name.args:
        kind, backend = Kind.ATTENTION, "flash" if "FlashAttn" in what else "cutlass"
    elif "ConvUniversal" in what:
        kind, backend = Kind.CONVOLUTION, "cutlass"
    else:
        kind, backend = (Kind.GEMM if "gemm" in name.args.lower() else Kind.OTHER), "cutlass"
    short = f"device_kernel<{what}>" if what else "device_kernel"
    return KernelName(name.raw, kind, backend, clip(short), (), cpp_dtype(name))


# --- attention, communication --------------------------------------------------------------------------------------


def flash(name: Parsed, _: re.Match[str]) -> KernelName:
    # head dim, kBlockM, kBlockN
    traits = re.search(r"kernel_traits<[0-9]{1,5}, ([0-9]{1,5}), ([0-9]{1,5})\b", name.args)
    tile = f"{traits[1]}x{traits[2]}" if traits else None
    return KernelName(name.raw, Kind.ATTENTION, "flash", clip(base_name(name)), (), cpp_dtype(name), tile)


def mem_efficient(name: Parsed, match: re.Match[str]) -> KernelName:
    dtype = _TOKEN_DTYPES.get(match["dtype"])
    return KernelName(name.raw, Kind.ATTENTION, "mem-efficient", clip(name.head), (), dtype, match["tile"])


def nccl(name: Parsed, match: re.Match[str]) -> KernelName:
    types = {**_TOKEN_DTYPES, "float": "fp32", "half": "fp16", "double": "fp64"}
    dtype = next((types[token] for token in name.head.split("_") if token in types), None)
    op = snake_case(match["op"])
    return KernelName(name.raw, Kind.COMMUNICATION, "nccl", clip(name.head), (op,), dtype)
