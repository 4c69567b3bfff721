"""A GPU kernel's name decoded: what it does, who made it, and a name short enough to print.

Names come from traces, so they are untrusted: `decode` accepts any string, in time linear in its length, and only
`raw` keeps what is unprintable. A rule that matches nothing more specific says `Kind.OTHER`: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from .inductor_ops import ATTENTION_OPS, CONVOLUTION_OPS, MATMUL_OPS, REDUCING_OPS, split_ops

__all__ = ["RULES", "KernelName", "Kind", "Rule", "decode"]


class Kind(str, Enum):
    """What a kernel does, whoever wrote it."""

    GEMM = "gemm"
    SPLITK_REDUCE = "splitk_reduce"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    NORM = "norm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    INDEX = "index"
    COPY = "copy"
    FILL = "fill"
    COMMUNICATION = "communication"
    MEMSET = "memset"
    MEMCPY = "memcpy"
    OTHER = "other"


@dataclass(frozen=True)
class KernelName:
    """A decoded name. A field is None, empty or False where the name does not say: absence is no statement."""

    raw: str  # byte for byte as in the trace: the only field to compare kernels by
    kind: Kind
    backend: str
    short: str  # to print; never empty, at most 60 characters, all printable
    ops: tuple[str, ...] = ()
    dtype: str | None = None  # of the inputs
    tile: str | None = None  # MxN of one thread block
    stages: str | None = None  # depth in K x number of pipeline stages
    layout: str | None = None  # t(ransposed) or n(ot) of A and B, and of C where there is a third letter
    split_k: bool = False
    bias_epilogue: bool = False
    graph_id: int | None = None  # Inductor's number of the kernel within its graph


class _Parsed(NamedTuple):
    raw: str
    text: str  # printable, without anonymous namespaces
    head: str  # the qualified name, without return type, template arguments and parameters
    base: str  # the last part of `head` where that is an identifier, else ""
    args: str  # the template arguments


_Build = Callable[[_Parsed, "re.Match[str]"], KernelName]


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
    build: _Build

    def match(self, name: _Parsed) -> re.Match[str] | None:
        """Hold the pattern against the part of the name that `scope` says."""
        if self.scope is _Scope.TEXT:
            return self.pattern.search(name.text)
        if self.scope is _Scope.HEAD:
            return self.pattern.search(name.head)
        if not name.base or (self.scope is _Scope.BARE and name.base != name.text):
            return None
        return self.pattern.fullmatch(name.base)


# --- C++ names -----------------------------------------------------------------------------------------------------

_SHORT_LENGTH = 60
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long|char)\)(?=[\w-])")  # Nsight writes `(int)4` for Kineto's `4`
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DTYPES = {
    "BFloat16": "bf16", "__nv_bfloat16": "bf16", "bfloat16_t": "bf16", "__hip_bfloat16": "bf16", "hip_bfloat16": "bf16",
    "Half": "fp16", "__half": "fp16", "half_t": "fp16", "half": "fp16", "float": "fp32", "double": "fp64",
    "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "__nv_fp8_e4m3": "fp8", "__nv_fp8_e5m2": "fp8",
    "float_e4m3_t": "fp8", "float_e5m2_t": "fp8", "tfloat32_t": "tf32", "complex": None,
}  # fmt: skip


def _parse(raw: str) -> _Parsed:
    text = raw if raw.isprintable() else "".join(c if c.isprintable() else "?" for c in raw)
    text = text.strip().removesuffix(" [clone .kd]").removesuffix(".kd")  # ROCm's suffix of a code object's symbol
    text = _CAST.sub("", _ANONYMOUS.sub("", text))
    head, args = _split(text) if "<" in text or "(" in text else (text.removeprefix("void "), "")
    base = head.rsplit("::", 1)[-1]
    return _Parsed(raw, text, head, base if _WORD.fullmatch(base) else "", args)


def _split(text: str) -> tuple[str, str]:
    """A C++ function's qualified name and its last template arguments; what stands open at the end is cut off there."""
    depth = start = args_at = 0
    heads: list[str] = []
    args = ""
    for at, char in enumerate(text):
        if char in "<(":
            if depth == 0:
                heads.append(text[start:at])
                if char == "(" and not heads[-1].endswith("operator"):
                    return "".join(heads), args
                args_at = at + 1
            depth += 1
        elif char in ">)" and depth:
            depth -= 1
            if depth == 0:
                start, args = at + 1, text[args_at:at]
        elif char == " " and depth == 0:
            start, heads, args = at + 1, [], ""  # what precedes was the return type
    if depth:
        return "".join(heads), text[args_at:]
    return "".join(heads) + text[start:], args


def _clip(text: str) -> str:
    """Both ends of a long name: the end carries Inductor's number, a GEMM's layout, a library's version."""
    text = text or "(no name)"
    return text if len(text) <= _SHORT_LENGTH else f"{text[:38]}...{text[-19:]}"


def _base(name: _Parsed) -> str:
    if name.base in ("kernel", "globalKernel"):
        return "::".join(name.head.rsplit("::", 2)[-2:])
    return name.base or name.head or name.text


def _cpp_dtype(name: _Parsed) -> str | None:
    return next((_DTYPES[word] for word in _WORD.findall(name.args) if word in _DTYPES), None)


# --- functors of ATen's kernels ------------------------------------------------------------------------------------

_FUNCTOR = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(?P<cuda>\w+)|launch_(?P<launch>\w+)"
    r"|(?P<functor>\w+?)_?[Ff]unctor|(?P<ops>\w+?)Ops|(?P<kernel>\w+?)_?(?:CUDA)?[Kk]ernel(?:_?[Ii]mpl)?(?:_cuda)?"
    r"|(?P<host>\w+?)_cuda(?:_out|_)?",
    re.ASCII,
)
_WRAPPER = re.compile(r"[AB]?(?:Unary|Binary|Ternary|Pointwise)(?:Op\w*)?|gpu(?:_index)?|opmath\w*", re.ASCII)
_PLAIN_FUNCTORS = {"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div", "Copy": "copy"}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SAME_OP = {
    "arg_max": "argmax", "arg_min": "argmin", "welford": "var", "norm_two": "norm", "lp_norm": "norm", "max_nan": "max",
    "min_nan": "min", "pow_tensor_scalar": "pow", "pow_tensor_tensor": "pow", "clamp_scalar": "clamp",
    "compare_eq": "eq", "fused_adam_math": "fused_adam", "fused_sgd_math": "fused_sgd",
}  # fmt: skip


def _functor_op(args: str) -> str | None:
    """The op that the first functor in an ATen kernel's template arguments names; wrappers are passed over."""
    for word in _WORD.findall(args):
        if word in _PLAIN_FUNCTORS:
            return _PLAIN_FUNCTORS[word]
        match = _FUNCTOR.fullmatch(word)
        stem = next((group for group in match.groups() if group), "") if match else ""
        if stem and not _WRAPPER.fullmatch(stem):
            op = _CAMEL.sub("_", stem).lower()
            return "copy" if op.endswith("_copy") and not op.startswith("index") else _SAME_OP.get(op, op)
    return None


def _aten_functor(default: Kind) -> _Build:
    kinds = {"copy": Kind.COPY, "fill": Kind.FILL, "norm": Kind.REDUCTION}

    def build(name: _Parsed, _: re.Match[str]) -> KernelName:
        op = _functor_op(name.args)
        kind = Kind.INDEX if (op or "").startswith("index") else kinds.get(op or "", default)
        short = _base(name) + (f"<{op}>" if op else "")
        return KernelName(name.raw, kind, "aten", _clip(short), (op,) if op else (), _cpp_dtype(name))

    return build


def _cpp(kind: Kind, backend: str, *ops: str) -> _Build:
    """A rule for one C++ kernel whose name says no more than this; a group `op` in its pattern names the op."""

    def build(name: _Parsed, match: re.Match[str]) -> KernelName:
        named = match.groupdict().get("op")
        found = ops or ((_CAMEL.sub("_", named).lower(),) if named else ())
        return KernelName(name.raw, kind, backend, _clip(_base(name)), found, _cpp_dtype(name))

    return build


# --- Inductor ------------------------------------------------------------------------------------------------------

# The first three letters of the heuristic (codegen/triton.py: define_kernel, wrapper_benchmark.py: its choices).
# "unk" is any other heuristic: upstream the cooperative reductions, elsewhere whole backends.
_CATEGORIES = {
    "poi": Kind.POINTWISE, "for": Kind.POINTWISE, "red": Kind.REDUCTION, "per": Kind.REDUCTION, "spl": Kind.REDUCTION,
}  # fmt: skip
_SPECIALISATION = re.compile(r"_(?:\d+[cde]+)+$", re.ASCII)  # `_0d1d2de`: appended to names by Triton 2.x
_TRAILING_ID = re.compile(r"(?:^|_)(?P<id>\d{1,9})$", re.ASCII)


def _kind_of_ops(ops: tuple[str, ...], otherwise: Kind) -> Kind:
    found = frozenset(ops)
    for kind, names in (
        (Kind.ATTENTION, ATTENTION_OPS),
        (Kind.CONVOLUTION, CONVOLUTION_OPS),
        (Kind.GEMM, MATMUL_OPS),
    ):
        if found & names:
            return kind
    return otherwise


def _inductor_triton(name: _Parsed, match: re.Match[str]) -> KernelName:
    merged = _SPECIALISATION.sub("", match["rest"])
    number = _TRAILING_ID.search(merged)
    ops = split_ops(merged[: number.start()] if number else merged)
    category = match["category"]
    kind = _CATEGORIES.get(category, Kind.OTHER)
    if category == "tem":
        kind = _kind_of_ops(ops, Kind.OTHER)
    elif category == "unk" and REDUCING_OPS.intersection(ops):
        kind = Kind.REDUCTION
    graph_id = int(number["id"]) if number else None
    return KernelName(name.raw, kind, "inductor-triton", _clip(name.text), ops, graph_id=graph_id)


def _inductor_cpp(name: _Parsed, match: re.Match[str]) -> KernelName:
    number = _TRAILING_ID.search(match["rest"])
    ops = split_ops(match["rest"][: number.start()] if number else match["rest"])
    kind = Kind.REDUCTION if REDUCING_OPS.intersection(ops) else Kind.POINTWISE
    graph_id = int(number["id"]) if number else None
    # `graph_N_` is left out of `short`: N counts the graphs of the process and says nothing of the kernel.
    return KernelName(name.raw, kind, "inductor-cpp", _clip(match["name"]), ops, graph_id=graph_id)


def _inductor_autotuned(name: _Parsed, match: re.Match[str]) -> KernelName:
    ops = split_ops(_TRAILING_ID.sub("", match["rest"] or ""))
    return KernelName(name.raw, _kind_of_ops(ops, Kind.OTHER), "inductor-triton", _clip(name.text), ops)


def _inductor_template(name: _Parsed, match: re.Match[str]) -> KernelName:
    ops = split_ops(match["rest"] or "")
    backend = f"inductor-{match['backend'].replace('_', '-')}"
    return KernelName(name.raw, _kind_of_ops(ops, Kind.OTHER), backend, _clip(name.text), ops)


# --- GEMM names ----------------------------------------------------------------------------------------------------

_TILE = re.compile(r"(?:tilesize)?(?P<mn>\d{1,5}x\d{1,5})(?:x(?P<k>\d{1,5}))?", re.ASCII)
_STAGE_COUNT = re.compile(r"_stage(\d{1,3})_|_\d+x\d+x\d+_(\d{1,3})_[tn]{3}_", re.ASCII)
_TOKEN_DTYPES = {
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "f32": "fp32", "fp32": "fp32", "tf32": "tf32", "f64": "fp64",
    "bf16bf16": "bf16", "f16f16": "fp16", "f32f32": "fp32", "tf32f32": "tf32", "e4m3e4m3": "fp8", "i8i8": "int8",
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


def _library(kind: Kind, backend: str) -> _Build:
    """cuBLAS, cuDNN and CUTLASS names made of tokens; a group `name` in the pattern is the part that counts."""

    def build(name: _Parsed, match: re.Match[str]) -> KernelName:
        text = match.groupdict().get("name") or name.text
        tile, stages, layout, split_k, bias = _gemm_fields(text)
        actual = Kind.CONVOLUTION if re.search(r"fprop|dgrad|wgrad|cudnn|convolve", text) else kind
        dtype = _token_dtype(text)
        return KernelName(name.raw, actual, backend, _clip(text), (), dtype, tile, stages, layout, split_k, bias)

    return build


def _nvjet(name: _Parsed, match: re.Match[str]) -> KernelName:
    tile, stages, layout, split_k, bias = _gemm_fields(name.text)
    types = _NVJET_TYPES.fullmatch(match["types"])
    dtype = _NVJET_DTYPES.get(types["inputs"]) if types else None
    return KernelName(name.raw, Kind.GEMM, "cublaslt", _clip(name.text), (), dtype, tile, stages, layout, split_k, bias)


def _splitk_reduce(name: _Parsed, _: re.Match[str]) -> KernelName:
    # No dtype: the first of its types is the accumulator's.
    return KernelName(name.raw, Kind.SPLITK_REDUCE, "cublaslt", _clip(_base(name)), split_k=True)


def _tensile(name: _Parsed, match: re.Match[str]) -> KernelName:
    shape = re.search(r"_MT([0-9]{1,5}x[0-9]{1,5})x[0-9]", name.text)
    split = re.search(r"_GSU([0-9]{1,3})_", name.text)  # GlobalSplitU
    layout = ("n" if match["a"] == "Ailk" else "t") + ("n" if match["b"] == "Bljk" else "t")
    dtype = {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["types"][:1])
    split_k = bool(split and int(split[1]) > 1)
    tile = shape[1] if shape else None
    return KernelName(name.raw, Kind.GEMM, "tensile", _clip(name.text), (), dtype, tile, None, layout, split_k)


def _cutlass3(name: _Parsed, _: re.Match[str]) -> KernelName:
    """`device_kernel` is CUTLASS 3's one entry point: the template argument says what runs."""
    marks = ("Universal", "FlashAttn", "Fmha")
    what = next((word for word in _WORD.findall(name.args) if any(mark in word for mark in marks)), "")
    if "FlashAttn" in what or "Fmha" in what or "fmha" in name.args:
        kind, backend = Kind.ATTENTION, "flash" if "FlashAttn" in what else "cutlass"
    elif "ConvUniversal" in what:
        kind, backend = Kind.CONVOLUTION, "cutlass"
    else:
        kind, backend = (Kind.GEMM if "gemm" in name.args.lower() else Kind.OTHER), "cutlass"
    short = f"device_kernel<{what}>" if what else "device_kernel"
    return KernelName(name.raw, kind, backend, _clip(short), (), _cpp_dtype(name))


# --- attention, communication, Triton, the rest --------------------------------------------------------------------


def _flash(name: _Parsed, _: re.Match[str]) -> KernelName:
    # head dim, kBlockM, kBlockN
    traits = re.search(r"kernel_traits<[0-9]{1,5}, ([0-9]{1,5}), ([0-9]{1,5})\b", name.args)
    tile = f"{traits[1]}x{traits[2]}" if traits else None
    return KernelName(name.raw, Kind.ATTENTION, "flash", _clip(_base(name)), (), _cpp_dtype(name), tile)


def _mem_efficient(name: _Parsed, match: re.Match[str]) -> KernelName:
    dtype = _TOKEN_DTYPES.get(match["dtype"])
    return KernelName(name.raw, Kind.ATTENTION, "mem-efficient", _clip(name.head), (), dtype, match["tile"])


def _nccl(name: _Parsed, match: re.Match[str]) -> KernelName:
    types = {**_TOKEN_DTYPES, "float": "fp32", "half": "fp16", "double": "fp64"}
    dtype = next((types[token] for token in name.head.split("_") if token in types), None)
    op = _CAMEL.sub("_", match["op"]).lower()
    return KernelName(name.raw, Kind.COMMUNICATION, "nccl", _clip(name.head), (op,), dtype)


_WORDS_OF_KINDS = tuple(
    (re.compile(rf"(?:^|_)(?:{words})(?:_|$)"), kind)
    for kind, words in (
        (Kind.ATTENTION, r"attn|attention|flash|mla|sdpa"),
        (Kind.GEMM, r"matmul|gemm|mm|bmm|linear"),
        (Kind.NORM, r"norm|rmsnorm|layernorm"),
        (Kind.REDUCTION, r"softmax|sparsemax|ce|entropy|loss|kldiv|jsd|distance|sum|reduce"),
        (Kind.POINTWISE, r"geglu|swiglu|gelu|silu|relu|rope|mrope|dyt|mul|add"),
        (Kind.INDEX, r"embedding|gather|scatter"),
    )
)
_PASS = re.compile(r"_(?P<pass>forward|backward|fwd|bwd)(?=_|$)")


def _triton(backend: str) -> _Build:
    """A hand-written kernel: a bare identifier. Its op is what stands before the pass; a backward says so."""

    def build(name: _Parsed, _: re.Match[str]) -> KernelName:
        kind = next((kind for words, kind in _WORDS_OF_KINDS if words.search(name.text)), Kind.OTHER)
        passed = _PASS.search(name.text)
        op = (name.text[: passed.start()] if passed else re.sub(r"_kernel.*", "", name.text)).strip("_")
        if op and passed and passed["pass"].startswith("b"):
            op += "_backward"
        return KernelName(name.raw, kind, backend, _clip(name.text), (op,) if op else ())

    return build


def _other(name: _Parsed) -> KernelName:
    return KernelName(name.raw, Kind.OTHER, "other", _clip(_base(name)))


def _plain(kind: Kind, backend: str) -> _Build:
    return lambda name, _: KernelName(name.raw, kind, backend, _clip(name.text))


def _rule(scope: _Scope, pattern: str, source: str, build: _Build) -> Rule:
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

# fmt: off
RULES: tuple[Rule, ...] = (
    # Rows of the profiler that are no kernels, and the kernels that ROCm runs in their place.
    _rule(_TEXT, r"^(?:Memset\b|\[CUDA memset|__amd_rocclr_fillBuffer)", _H200, _plain(Kind.MEMSET, "runtime")),
    _rule(_TEXT, r"^(?:Memcpy\b|\[CUDA memcpy|__amd_rocclr_copyBuffer)", _PUBLIC, _plain(Kind.MEMCPY, "runtime")),

    # Inductor. Anything may precede "triton_": AOTInductor puts the model's name there.
    _rule(_BARE, r"(?:\w*?_)??triton_(?P<category>for|per|poi|red|spl|tem|unk)_(?:fused(?:_|$))?(?P<rest>\w*)",
          f"{_INDUCTOR}/codegen/triton.py: define_kernel", _inductor_triton),
    _rule(_BARE, r"(?:graph_\d+_)?(?P<name>(?:\w*?_)??cpp_fused(?:_|$)(?P<rest>\w*))",
          f"{_INDUCTOR}/codegen/cpp.py: define_kernel, codegen_group", _inductor_cpp),
    _rule(_BARE, r"(?P<backend>cutlass|cutedsl|nv_universal_gemm|pallas|rocm)_(?:fused_(?P<rest>\w+)_)?[0-9a-f]{8}",
          f"{_INDUCTOR}/codegen: define_kernel of the template backends", _inductor_template),
    _rule(_BARE, r"triton_(?P<rest>\w*mm\w*|flex_\w+|convolution\w*)",
          f"{_INDUCTOR}/select_algorithm.py: a template while it is autotuned", _inductor_autotuned),
    _rule(_BARE, r"triton_(?:_[0-9cde]+)?",
          f"{_INDUCTOR}/config.py: triton.unique_kernel_names = False", _plain(Kind.OTHER, "inductor-triton")),

    # Communication.
    _rule(_BASE, r"nccl(?:Sym|Symk)?(?:Dev)?Kernel_(?P<op>[A-Za-z]+)\w*", "NCCL: src/device/generate.py", _nccl),
    _rule(_BASE, r"multimem_\w+|\w*(?:one|two)_?shot_\w+|cross_device_reduce\w*|nvshmem\w*", _PUBLIC,
          _cpp(Kind.COMMUNICATION, "other")),

    # Attention, before the libraries that its kernels are built with.
    _rule(_BASE, r"flash_(?:fwd|bwd)\w*", "flash-attention: flash_fwd_launch_template.h", _flash),
    _rule(_BASE, r"fmha_cutlass[FB]_(?P<dtype>[a-z0-9]+)_(?:[a-z]+_)?(?P<tile>\d{1,5}x\d{1,5})\w*",
          f"{_ATEN}: transformers/cuda/mem_eff_attention/kernels", _mem_efficient),
    _rule(_BASE, r"attention_kernel\w*", f"{_ATEN}: mem_eff_attention", _cpp(Kind.ATTENTION, "mem-efficient")),
    _rule(_BARE, r"(?:kernel_cutlass_kernel_|flash_)\w*(?:flash_attn|[Ff]lash_?[Aa]ttention)\w*", _PUBLIC,
          _plain(Kind.ATTENTION, "flash")),
    _rule(_BARE, r"cudnn_generated_\w*sdpa\w*", _PUBLIC, _plain(Kind.ATTENTION, "cudnn")),

    # cuDNN, before the libraries that its kernels are built with.
    _rule(_BARE, r"cudnn_generated_\w*conv\w*", _PUBLIC, _library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, r"cudnn_generated_\w*(?:matMul|gemm)\w*", _PUBLIC, _library(Kind.GEMM, "cudnn")),
    _rule(_TEXT, r"\bcutlass__5x_cudnn::Kernel<(?P<name>cutlass_\w+)", _PUBLIC, _library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, r"_ZN17cutlass__5x_cudnn\d+KernelI\d+(?P<name>cutlass_\w+?_align\d+)\w*", f"{_PUBLIC}, not demangled",
          _library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BARE, rf"sm\d+_xmma_\w*(?:fprop|dgrad|wgrad)\w*|{_ARCH}_\w*cudnn_\w*", _PUBLIC,
          _library(Kind.CONVOLUTION, "cudnn")),
    _rule(_BASE, r"(?:im|ex)plicit_convolve\w*|\w*winograd\w*|[dw]grad\w*|conv\w*_grouped_direct\w*", _PUBLIC,
          _cpp(Kind.CONVOLUTION, "cudnn")),
    _rule(_BASE, r"(?:nchwToNhwc|nhwcToNchw|nhwcToFoldedNhwc|nchwAddPadding)\w*", _PUBLIC, _cpp(Kind.COPY, "cudnn")),
    _rule(_HEAD, r"^cudnn::(?:\w+::)*(?:bn_|batchnorm)", _PUBLIC, _cpp(Kind.NORM, "cudnn", "batch_norm")),
    _rule(_BASE, r"compute_dot_do_o\w*", _PUBLIC, _cpp(Kind.ATTENTION, "cudnn")),
    _rule(_HEAD, r"^cudnn(?:::|_)", _PUBLIC, _cpp(Kind.OTHER, "cudnn")),

    # cuBLAS and cuBLASLt.
    _rule(_BARE, r"nvjet_(?:sm\d+[a-z]?_)?(?P<types>[a-z]+)_\w*", _H200, _nvjet),
    _rule(_BASE, r"splitKreduce_kernel", _H200, _splitk_reduce),
    _rule(_HEAD, r"^cublasLt::epilogue::", _PUBLIC, _cpp(Kind.POINTWISE, "cublaslt")),
    _rule(_BARE, rf"{_ARCH}_\w*gemm\w*", f"seen on A100; {_PUBLIC}", _library(Kind.GEMM, "cublas")),
    _rule(_BARE, r"sm\d+_xmma_gemm_\w*", _H200, _library(Kind.GEMM, "cublas")),
    _rule(_HEAD, r"\bgemvx::kernel$|^cublasLt::", _PUBLIC, _cpp(Kind.GEMM, "cublas")),
    _rule(_BASE, r"gemv\w*|gemm(?:SN|k1)_\w+|magma_\w*gemm\w*", _PUBLIC, _cpp(Kind.GEMM, "cublas")),

    # CUTLASS. A 2.x kernel carries its name as template argument; cuBLAS ships some without that wrapper.
    _rule(_TEXT, r"\bcutlass::Kernel2?<(?P<name>cutlass_\w+)", _PUBLIC, _library(Kind.GEMM, "cutlass")),
    _rule(_BARE, r"cutlass(?:3x)?_\w*(?:gemm|fprop|dgrad|wgrad)\w*", "cutlass: media/docs/profiler.md",
          _library(Kind.GEMM, "cutlass")),
    _rule(_BARE, r"_ZN7cutlass\d+Kernel2?I\d+(?P<name>cutlass_\w+?_align\d+)\w*", f"{_PUBLIC}, not demangled",
          _library(Kind.GEMM, "cutlass")),
    _rule(_HEAD, r"\bcutlass::device_kernel$", "cutlass: include/cutlass/device_kernel.h", _cutlass3),

    # ROCm.
    _rule(_BARE, r"(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<types>[A-Z0-9]+)_\w*",
          "ROCm/Tensile wiki: Kernel Parameters", _tensile),
    _rule(_HEAD, r"^ck(?:_tile)?::(?:\w+::)*kernel_\w*gemm", _PUBLIC, _cpp(Kind.GEMM, "composable-kernel")),

    # ATen.
    _rule(_BASE, r"multi_tensor_apply_kernel", _H200, _aten_functor(Kind.POINTWISE)),
    _rule(_BASE, r"reduce_kernel", _H200, _aten_functor(Kind.REDUCTION)),
    _rule(_BASE, r"\w*scatter_gather_elementwise_kernel", _ATEN, _cpp(Kind.INDEX, "aten", "scatter_gather")),
    _rule(_BASE, r"index_elementwise_kernel", _ATEN, _aten_functor(Kind.INDEX)),
    _rule(_BASE, r"\w*elementwise_kernel\w*|distribution_elementwise\w+", _H200, _aten_functor(Kind.POINTWISE)),
    _rule(_BASE, r"CatArrayBatchedCopy\w*", _ATEN, _cpp(Kind.COPY, "aten", "cat")),
    _rule(_BASE, r"split_with_sizes_copy\w*", _ATEN, _cpp(Kind.COPY, "aten", "split_with_sizes_copy")),
    _rule(_BASE, r"index(?:Select|Func)(?:Large|Small)Index|indexing_backward\w*|vectorized_gather_kernel"
          r"|embedding_backward_feature_kernel|EmbeddingBag_\w+|compute_grad_weight\w*", _ATEN,
          _cpp(Kind.INDEX, "aten")),
    _rule(_BASE, r"cunn_(?:Spatial)?SoftMax\w*|softmax_warp_(?:forward|backward)", _ATEN,
          _cpp(Kind.REDUCTION, "aten", "softmax")),
    _rule(_HEAD, r"^at::(?:\w+::)*\w*(?:layer_norm|LayerNorm|cuCompute|GammaBeta|RowwiseMoments)", _ATEN,
          _cpp(Kind.NORM, "aten")),
    _rule(_HEAD, r"^at::(?:\w+::)*batch_norm_", _ATEN, _cpp(Kind.NORM, "aten", "batch_norm")),
    _rule(_BASE, r"(?P<op>nll_loss)\w*|tensor_kernel_scan_\w+", _ATEN, _cpp(Kind.REDUCTION, "aten")),
    _rule(_BASE, r"fused_dropout_kernel\w*", _ATEN, _cpp(Kind.POINTWISE, "aten", "dropout")),
    _rule(_BASE, r"(?P<op>triu_tril)_kernel", _ATEN, _cpp(Kind.POINTWISE, "aten")),
    _rule(_BASE, r"(?P<op>im2col|col2im|vol2col|conv_depthwise[23]d)_\w*", _ATEN, _cpp(Kind.CONVOLUTION, "aten")),
    _rule(_HEAD, r"^(?:at|c10)::", _ATEN, _cpp(Kind.OTHER, "aten")),
    _rule(_HEAD, r"^(?:at_cuda_detail::)?(?:cub|thrust|rocprim|hipcub)::", _PUBLIC, _cpp(Kind.OTHER, "cub")),

    # Hand-written Triton: bare identifiers, as `extern "C"` kernels are too; the leading "_" is Triton's custom alone.
    _rule(_BARE, _LIGER, "Liger-Kernel: src/liger_kernel/ops", _triton("liger")),
    _rule(_BARE, r"_(?![A-Z])\w*(?:kernel|fwd|bwd|forward|backward)\w*", _PUBLIC, _triton("triton")),
    _rule(_BARE, r"triton_\w+", _PUBLIC, _triton("triton")),
)
# fmt: on


@lru_cache(maxsize=4096)
def decode(raw: str) -> KernelName:
    """Decode a kernel's name. Never raises; a name that no rule knows is `Kind.OTHER` of backend "other"."""
    name = _parse(raw)
    for rule in RULES:
        match = rule.match(name)
        if match:
            return rule.build(name, match)
    return _other(name)
