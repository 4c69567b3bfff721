"""A GPU kernel's name decoded: what the kernel does, which library it is from, and a name short enough to print.

A rule about names is one row of `_RULES`. They follow the sources that comments name, recordings of an H200, and public
profiles (docs/design/public-traces.md). Names come from traces and are untrusted: `decode` accepts any string, in time
linear in its length, and only `raw` keeps unprintable characters. A name without a rule is `Kind.OTHER`.

C++ names reach a trace demangled, but for some of ROCm. All that is needed of them is the qualified name and the template
arguments, which `_parse_name` finds by counting brackets; of a mangled name, what can be read without a demangler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple


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
    backend: str  # the library
    short: str  # to print; never empty, at most 60 characters, all printable
    ops: tuple[str, ...] = ()  # of a kernel of Inductor's, the words of all that it merges
    dtype: str | None = None  # of the inputs
    tile: str | None = None  # MxN of one thread block
    stages: str | None = None  # depth in K x number of pipeline stages
    layout: str | None = None  # t(ransposed) or n(ot) of A and B, and of C where there is a third letter
    split_k: bool = False
    bias_epilogue: bool = False


# --- the parts of a name ---------------------------------------------------------------------------------------------


class _Parsed(NamedTuple):
    """The parts of a name that patterns are matched with and details are read from."""

    raw: str
    text: str  # printable, without anonymous namespaces
    head: str  # the qualified name, without return type, template arguments and parameters
    base: str  # the last part of `head` where that is an identifier, else ""
    bare: str  # `base` of a name that has nothing else, else ""
    args: str  # the template arguments


_SHORT_LENGTH = 60
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long|char)\)(?=[\w-])")  # Nsight writes `(int)4` for Kineto's `4`
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CPP_DTYPES = {
    "BFloat16": "bf16", "__nv_bfloat16": "bf16", "bfloat16_t": "bf16", "__hip_bfloat16": "bf16", "hip_bfloat16": "bf16",
    "Half": "fp16", "__half": "fp16", "half_t": "fp16", "half": "fp16", "float": "fp32", "double": "fp64",
    "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "__nv_fp8_e4m3": "fp8", "__nv_fp8_e5m2": "fp8",
    "float_e4m3_t": "fp8", "float_e5m2_t": "fp8", "tfloat32_t": "tf32", "complex": None,
}  # fmt: skip


def _parse_name(raw: str) -> _Parsed:
    """Split any string into its parts; what is not printable becomes "?" everywhere but in `raw`."""
    text = raw if raw.isprintable() else "".join(c if c.isprintable() else "?" for c in raw)
    text = text.strip().removesuffix(" [clone .kd]").removesuffix(".kd")  # ROCm's suffix of a code object's symbol
    text = _CAST.sub("", _ANONYMOUS.sub("", text))
    if text.startswith("_Z"):
        head, args = _split_mangled(text)
    else:
        head, args = _split_function(text) if "<" in text or "(" in text else (text.removeprefix("void "), "")
    last = head.rsplit("::", 1)[-1]
    base = last if _WORD.fullmatch(last) else ""
    return _Parsed(raw, text, head, base, base if base == text else "", args)


def _split_function(text: str) -> tuple[str, str]:
    """Return a C++ function's qualified name and its last template arguments, up to a bracket that stays open."""
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


_LENGTH = re.compile(r"[0-9]{1,4}")


def _split_mangled(text: str) -> tuple[str, str]:
    """Return `ck::kernel_gemm` and the rest of `_ZN2ck11kernel_gemmI...`: the scopes up to the first that has arguments."""
    parts, at = [], 3 if text.startswith("_ZN") else 2
    while length := _LENGTH.match(text, at):
        at = length.end() + int(length[0])
        parts.append(text[length.end() : at])
    return "::".join(part for part in parts if part and not part.startswith("_GLOBAL__N")) or text, text[at:]


def _clip(text: str) -> str:
    """Keep both ends of a long name: the end has Inductor's number, a GEMM's layout, a library's version."""
    text = text or "(no name)"
    return text if len(text) <= _SHORT_LENGTH else f"{text[:38]}...{text[-19:]}"


def _base_name(name: _Parsed) -> str:
    """Return the last part of the qualified name; one part more where that alone says nothing."""
    if name.base in ("kernel", "globalKernel"):
        return "::".join(name.head.rsplit("::", 2)[-2:])
    return name.base or name.head or name.text


def _cpp_dtype(name: _Parsed) -> str | None:
    """Return the first element type among the template arguments."""
    return next((_CPP_DTYPES[word] for word in _WORD.findall(name.args) if word in _CPP_DTYPES), None)


def _snake_case(text: str) -> str:
    """Spell `ReduceScatter` as ops are written: `reduce_scatter`."""
    return _CAMEL.sub("_", text).lower()


# --- the details of a name -------------------------------------------------------------------------------------------
# Each function returns fields of `KernelName`, and replaces those that its rule gives. The default of `short` is the
# whole name.

_Details = Callable[[_Parsed, "re.Match[str]"], dict[str, Any]]


def _whole(_name: _Parsed, _match: re.Match[str]) -> dict[str, Any]:
    return {}


def _cpp(name: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    """Read a C++ name; a group `op` of the pattern is the op."""
    op = match.groupdict().get("op")
    fields: dict[str, Any] = {"short": _base_name(name), "dtype": _cpp_dtype(name)}
    return {**fields, "ops": (_snake_case(op),)} if op else fields


# The first three letters of the heuristic (codegen/triton.py: define_kernel, wrapper_benchmark.py: its choices).
# "unk" is any other heuristic: upstream the cooperative reductions, elsewhere whole backends.
_INDUCTOR_CATEGORIES = {
    "poi": Kind.POINTWISE, "for": Kind.POINTWISE, "red": Kind.REDUCTION, "per": Kind.REDUCTION, "spl": Kind.REDUCTION,
}  # fmt: skip
_SPECIALISATION = re.compile(r"_(?:\d+[cde]+)+$", re.ASCII)  # `_0d1d2de`: appended to names by Triton 2.x
_TRAILING_ID = re.compile(r"(?:^|_)(?P<id>\d{1,9})$", re.ASCII)


# Inductor joins the names of the ops that it merges with "_", which they contain too: `_unsafe_view_gelu_mul`
# (torch/_inductor/utils.py: get_fused_kernel_name). Words tell as much as names.
_REDUCING = re.compile(
    r"(?<!clamp_)(?<![a-z])(?:all|amax|amin|any|argmax|argmin|count_nonzero|(?:log)?cum(?:prod|sum|sumexp)|logsumexp|max|mean"
    r"|median|min|norm(?!_legit_no)|prod|softmax|std|sum|var)(?:_|$)(?!gather|reduce|to_all|pool)"
)


def _merged_words(merged: str) -> tuple[str, ...]:
    words = _TRAILING_ID.sub("", merged).split("_")
    return tuple(dict.fromkeys(word for word in words if word))


def _inductor_triton(_: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    merged, category = _SPECIALISATION.sub("", match["rest"]), match["category"]
    kind = _INDUCTOR_CATEGORIES.get(category, Kind.OTHER)
    if category == "tem":
        kind = kind_of_words(merged)
    elif category == "unk" and _REDUCING.search(merged):
        kind = Kind.REDUCTION
    return {"ops": _merged_words(merged), "kind": kind}


def _inductor_cpp(_: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    kind = Kind.REDUCTION if _REDUCING.search(match["rest"]) else Kind.POINTWISE
    # `graph_N_` is left out of `short`: N counts the graphs of the process and says nothing of the kernel.
    return {"ops": _merged_words(match["rest"]), "kind": kind, "short": match["name"]}


_TILE = re.compile(r"(?:tilesize)?(?P<mn>\d{1,5}x\d{1,5})(?:x(?P<k>\d{1,5}))?", re.ASCII)
_STAGE_COUNT = re.compile(r"_stage(\d{1,3})_|_\d+x\d+x\d+_(\d{1,3})_[tn]{3}_", re.ASCII)
_TOKEN_DTYPES = {
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "f32": "fp32", "fp32": "fp32", "tf32": "tf32", "f64": "fp64",
    "bf16bf16": "bf16", "f16f16": "fp16", "f32f32": "fp32", "tf32f32": "tf32", "e4m3e4m3": "fp8", "e4m3bf16": "fp8",
    "e4m3f16": "fp8", "e4m3f32": "fp8", "i8i8": "int8",
}  # fmt: skip
_LETTER_DTYPES = {"s": "fp32", "d": "fp64", "h": "fp16"}  # BLAS: sgemm, dgemm, hgemm
# The first letters are those of A and B: `tst` ran on bf16 (seen on H200, torch 2.11), `hss` and `hsh` on fp16 with
# fp32 and fp16 outputs, `qqtst` on fp8 with a bf16 output (public profiles of cuBLASLt). Others are not decoded.
_NVJET_DTYPES = {"t": "bf16", "h": "fp16", "qq": "fp8"}
_NVJET_TYPES = re.compile(r"(?P<inputs>qq|[a-z])(?:s[a-z]|[a-z]s[a-z])")
_ARITHMETIC = re.compile(r"(?P<letter>[a-z]?)\d*(?P<types>bf16|tf32|f16)?(?:gemm|cudnn|fprop|dgrad|wgrad)", re.ASCII)
_CONVOLUTION = re.compile(r"fprop|dgrad|wgrad|cudnn|convolve")
_SPLIT_K = re.compile(r"split_?k(?!reduce)", re.IGNORECASE)
_SPLIT_WORD = re.compile(r"[_<>()\s,:]+")


def _gemm_shape(text: str) -> dict[str, Any]:
    """Read tile, stages, layout, split-K and bias from the tokens of a library's GEMM or convolution name."""
    tokens = _SPLIT_WORD.split(text)
    tile = stages = layout = None
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        shape = _TILE.fullmatch(token)
        if shape and tile is None:
            tile, depth = shape["mn"], shape["k"]
            count = _STAGE_COUNT.search(text) if depth else None
            following_shape = _TILE.fullmatch(following)
            if count:
                stages = f"{depth}x{count[1] or count[2]}"
            elif following_shape and not following_shape["k"]:
                stages = following
        elif token == "stages" and _TILE.fullmatch(following):
            stages = following
        elif layout is None and re.fullmatch(r"[tn]{2,3}|[NT]{3}", token):
            layout = token
    fields: dict[str, Any] = {"tile": tile, "stages": stages, "layout": layout}
    return {**fields, "split_k": bool(_SPLIT_K.search(text)), "bias_epilogue": "bias" in tokens}


def _token_dtype(text: str) -> str | None:
    """Return the type of the inputs: CUTLASS and cuBLAS write [output] arithmetic [inputs].

    `s1688gemm` alone is TF32 or an emulation of fp32, so it has no answer here.
    """
    tokens = _SPLIT_WORD.split(text)
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


def _tokens(name: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    """Read a name of cuBLAS, cuDNN or CUTLASS; a group `name` of the pattern is the part that counts."""
    text = match.groupdict().get("name") or name.text
    fields = {**_gemm_shape(text), "short": text, "dtype": _token_dtype(text)}
    return {**fields, "kind": Kind.CONVOLUTION} if _CONVOLUTION.search(text) else fields


def _nvjet(name: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    types = _NVJET_TYPES.fullmatch(match["types"])
    return {**_gemm_shape(name.text), "dtype": _NVJET_DTYPES.get(types["inputs"]) if types else None}


def _splitk_reduce(name: _Parsed, _: re.Match[str]) -> dict[str, Any]:
    return {"short": _base_name(name), "split_k": True}  # no dtype: the first of its types is the accumulator's


def _tensile(name: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    tile = re.search(r"_MT([0-9]{1,5}x[0-9]{1,5})x[0-9]", name.text)
    split = re.search(r"_GSU([0-9]{1,3})_", name.text)  # GlobalSplitU
    return {
        "dtype": {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["types"][:1]),
        "tile": tile[1] if tile else None,
        "layout": ("n" if match["a"] == "Ailk" else "t") + ("n" if match["b"] == "Bljk" else "t"),
        "split_k": bool(split and int(split[1]) > 1),
    }


def _cutlass3(name: _Parsed, _: re.Match[str]) -> dict[str, Any]:
    """Read the template argument: `device_kernel` is CUTLASS 3's one entry point."""
    marks = ("Universal", "FlashAttn", "Fmha")
    what = next((word for word in _WORD.findall(name.args) if any(mark in word for mark in marks)), "")
    fields: dict[str, Any] = {"short": f"device_kernel<{what}>" if what else "device_kernel", "dtype": _cpp_dtype(name)}
    if "FlashAttn" in what or "Fmha" in what or "fmha" in name.args:
        return {**fields, "kind": Kind.ATTENTION, "backend": "flash" if "FlashAttn" in what else "cutlass"}
    if "ConvUniversal" in what:
        return {**fields, "kind": Kind.CONVOLUTION}
    return {**fields, "kind": Kind.GEMM if "gemm" in name.args.lower() else Kind.OTHER}


def _nccl(name: _Parsed, match: re.Match[str]) -> dict[str, Any]:
    types = {**_TOKEN_DTYPES, "float": "fp32", "half": "fp16", "double": "fp64"}
    dtype = next((types[token] for token in name.head.split("_") if token in types), None)
    return {"short": name.head, "ops": (_snake_case(match["op"]),), "dtype": dtype}


_FUNCTOR = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(?P<cuda>\w+)|launch_(?P<launch>\w+)"
    r"|(?P<functor>\w+?)_?[Ff]unctor|(?P<ops>\w+?)Ops|(?P<kernel>\w+?)_?(?:CUDA)?[Kk]ernel(?:_?[Ii]mpl)?(?:_cuda)?"
    r"|(?P<host>\w+?)_cuda(?:_out|_)?",
    re.ASCII,
)
_WRAPPER = re.compile(r"[AB]?(?:Unary|Binary|Ternary|Pointwise)(?:Op\w*)?|gpu(?:_index)?|opmath\w*", re.ASCII)
_PLAIN_FUNCTORS = {"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div", "Copy": "copy"}
_SAME_OP = {
    "arg_max": "argmax", "arg_min": "argmin", "welford": "var", "norm_two": "norm", "lp_norm": "norm", "max_nan": "max",
    "min_nan": "min", "pow_tensor_scalar": "pow", "pow_tensor_tensor": "pow", "clamp_scalar": "clamp",
    "compare_eq": "eq", "fused_adam_math": "fused_adam", "fused_sgd_math": "fused_sgd",
}  # fmt: skip
_KINDS_OF_FUNCTORS = {"copy": Kind.COPY, "fill": Kind.FILL, "norm": Kind.REDUCTION}


def _functor_op(args: str) -> str | None:
    """Return the op that the first functor among ATen's template arguments names; wrappers are passed over."""
    for word in _WORD.findall(args):
        if word in _PLAIN_FUNCTORS:
            return _PLAIN_FUNCTORS[word]
        match = _FUNCTOR.fullmatch(word)
        stem = next((group for group in match.groups() if group), "") if match else ""
        if stem and not _WRAPPER.fullmatch(stem):
            op = _snake_case(stem)
            return "copy" if op.endswith("_copy") and not op.startswith("index") else _SAME_OP.get(op, op)
    return None


def _functor(name: _Parsed, _: re.Match[str]) -> dict[str, Any]:
    """Read the op of an ATen kernel template from its functor; the op may say another kind than the template."""
    fields: dict[str, Any] = {"short": _base_name(name), "dtype": _cpp_dtype(name)}
    op = _functor_op(name.args)
    if op:
        fields |= {"short": f"{fields['short']}<{op}>", "ops": (op,)}
        kind = Kind.INDEX if op.startswith("index") else _KINDS_OF_FUNCTORS.get(op)
        fields |= {"kind": kind} if kind else {}
    return fields


# The first that matches: `index_add` is no addition, `all_reduce` and `scatter_reduce` no reduction.
_WORDS_OF_KINDS = tuple(
    (re.compile(rf"(?:^|[_ ])(?:{words})(?:_|$)"), kind)
    for kind, words in (
        (Kind.COMMUNICATION, r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast"),
        (Kind.ATTENTION, r"attn|attention|flash|mla|sdpa"),
        (Kind.CONVOLUTION, r"conv(?:olution|[123]d)?"),
        (Kind.GEMM, r"matmul|gemm|(?:add|badd|addb)?b?mm|(?:add)?mv|linear"),
        (Kind.NORM, r"norm|rmsnorm|layernorm"),
        (Kind.INDEX, r"embedding|gather|scatter|index|sort|topk|unique|nonzero|where|searchsorted"),
        (
            Kind.REDUCTION,
            r"softmax|sparsemax|ce|entropy|loss|kldiv|jsd|distance|sum|reduce|[a-z]*pool\w*|cum\w+|scan|arg\w+",
        ),
        (Kind.POINTWISE, r"geglu|swiglu|gelu|silu|relu|rope|mrope|dyt|mul|add|upsample\w*|interpolate|dropout"),
    )
)


def kind_of_words(text: str) -> Kind:
    """Return the kind that words of a Triton kernel or of an op say."""
    text = _snake_case(text)
    return next((kind for words, kind in _WORDS_OF_KINDS if words.search(text)), Kind.OTHER)


_PASS = re.compile(r"_(?P<pass>forward|backward|fwd|bwd)(?=_|$)")


def _triton(name: _Parsed, _: re.Match[str]) -> dict[str, Any]:
    """Read the words of a hand-written kernel. Its op is what stands before the pass; a backward says so."""
    passed = _PASS.search(name.text)
    op = (name.text[: passed.start()] if passed else re.sub(r"_kernel.*", "", name.text)).strip("_")
    if op and passed and passed["pass"].startswith("b"):
        op += "_backward"
    return {"kind": kind_of_words(name.text), "ops": (op,) if op else ()}


# --- the rules -------------------------------------------------------------------------------------------------------


# The part of a name that a pattern is matched with: searched for in the whole name or in the qualified name; all of the
# qualified name's last part, or of a name that is one identifier, where a pattern with two `*` takes linear time.
_TEXT, _HEAD, _BASE, _BARE = "text", "head", "base", "bare"


class _Rule(NamedTuple):
    """One row of the table. The details that the name itself gives replace `backend`, `kind` and `op`."""

    scope: str
    pattern: re.Pattern[str]
    backend: str  # the library
    kind: Kind
    details: _Details
    op: str

    def match(self, name: _Parsed) -> re.Match[str] | None:
        """Match the pattern with the part of the name that `scope` says."""
        text = getattr(name, self.scope)
        return self.pattern.search(text) if self.scope in (_TEXT, _HEAD) else self.pattern.fullmatch(text)


def _rule(scope: str, pattern: str, backend: str, kind: Kind, details: _Details = _cpp, op: str = "") -> _Rule:
    return _Rule(scope, re.compile(pattern, re.ASCII), backend, kind, details, op)


_LIGER = (
    r"liger_\w+|element_mul_kernel|_(?:triton_(?:llama4_rope|qwen2vl_mrope|rope)|selective_log_softmax_kernel"
    r"|(?:kldiv|jsd|tv_distance)_kernel(?:_forward|_backward)?|(?:dyt|grpo_loss|attn_res|mhc_\w+)_(?:fwd|bwd)\w*"
    r"|(?:geglu|geglu_tanh|swiglu|relu_squared|(?:block_|fused_add_|modulated_)?rms_norm|poly_norm|layer_norm"
    r"|group_norm|sparsemax|softmax_(?:single|multi)_block)_(?:forward|backward)_\w*kernel\w*)"
)
_ARCH = r"(?:trt_)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)"

# The first row that matches wins.
# fmt: off
_RULES: tuple[_Rule, ...] = (
    # Rows of the profiler that are no kernels, and the kernels that ROCm runs in their place.
    _rule(_TEXT, r"^(?:Memset\b|\[CUDA memset|__amd_rocclr_fillBuffer)", "runtime", Kind.MEMSET, _whole),
    _rule(_TEXT, r"^(?:Memcpy\b|\[CUDA memcpy|__amd_rocclr_copyBuffer)", "runtime", Kind.MEMCPY, _whole),

    # Inductor (torch/_inductor/codegen: define_kernel; config.py: unique_kernel_names). Anything may precede "triton_":
    # AOTInductor puts the model's name there.
    _rule(_BARE, r"(?:\w*?_)??triton_(?P<category>for|per|poi|red|spl|tem|unk)_(?:fused(?:_|$))?(?P<rest>\w*)",
          "inductor-triton", Kind.OTHER, _inductor_triton),
    _rule(_BARE, r"(?:graph_\d+_)?(?P<name>(?:\w*?_)??cpp_fused(?:_|$)(?P<rest>\w*))",
          "inductor-cpp", Kind.POINTWISE, _inductor_cpp),
    _rule(_BARE, r"triton_(?:_[0-9cde]+)?", "inductor-triton", Kind.OTHER, _whole),

    # Communication (NCCL: src/device/generate.py).
    _rule(_BASE, r"nccl(?:Sym|Symk)?(?:Dev)?Kernel_(?P<op>[A-Za-z]+)\w*", "nccl", Kind.COMMUNICATION, _nccl),
    _rule(_BASE, r"nccl(?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)\w*Kernel\w*",
          "nccl", Kind.COMMUNICATION),
    _rule(_BASE, r"multimem_\w+|\w*(?:one|two)_?shot_\w+|cross_device_reduce\w*|nvshmem\w*",
          "other", Kind.COMMUNICATION),

    # Attention (flash_fwd_launch_template.h; ATen: transformers/cuda/mem_eff_attention), before the libraries that its
    # kernels are built with.
    _rule(_BASE, r"flash_(?:fwd|bwd)\w*", "flash", Kind.ATTENTION),
    _rule(_BASE, r"attention_kernel\w*|fmha_cutlass[FB]_\w+", "mem-efficient", Kind.ATTENTION),
    _rule(_BARE, r"(?:kernel_cutlass_kernel_|flash_)\w*(?:flash_attn|[Ff]lash_?[Aa]ttention)\w*",
          "flash", Kind.ATTENTION, _whole),
    _rule(_BARE, r"cudnn_generated_\w*sdpa\w*", "cudnn", Kind.ATTENTION, _whole),

    # cuDNN, before the libraries that its kernels are built with.
    _rule(_BARE, r"cudnn_generated_\w*conv\w*", "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_BARE, r"cudnn_generated_\w*(?:matMul|gemm)\w*", "cudnn", Kind.GEMM, _tokens),
    _rule(_TEXT, r"\bcutlass__5x_cudnn::Kernel<(?P<name>cutlass_\w+)", "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_TEXT, r"^_ZN17cutlass__5x_cudnn\d+KernelI\d+(?P<name>cutlass_\w+?_align\d+)",
          "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_TEXT, r"^(?:void )?cutlass_cudnn\w*::Kernel<cutlass_cudnn\w*::reduction::kernel::ReduceSplitK",
          "cudnn", Kind.SPLITK_REDUCE),
    _rule(_TEXT, r"^(?:void )?cutlass_cudnn\w*::Kernel<(?P<name>cutlass_\w+)", "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_TEXT, r"^_ZN\d+cutlass_cudnn\w*ImplicitGemmConvolution", "cudnn", Kind.CONVOLUTION, _whole),
    _rule(_BARE, rf"cudnn_(?:infer|train)_{_ARCH}_(?P<name>\w*cudnn_\w*)", "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_BARE, rf"sm\d+_xmma_\w*(?:fprop|dgrad|wgrad)\w*|(?:cudnn_)?{_ARCH}_\w*cudnn_\w*",
          "cudnn", Kind.CONVOLUTION, _tokens),
    _rule(_BASE, r"(?:im|ex)plicit_convolve\w*|\w*winograd\w*|[dw]grad\w*|conv\w*_grouped_direct\w*",
          "cudnn", Kind.CONVOLUTION),
    _rule(_BASE, r"(?:nchwToNhwc|nhwcToNchw|nhwcToFoldedNhwc|nchwAddPadding)\w*", "cudnn", Kind.COPY),
    _rule(_HEAD, r"^cudnn::(?:\w+::)*(?:bn_|batchnorm)", "cudnn", Kind.NORM, op="batch_norm"),
    _rule(_BASE, r"compute_dot_do_o\w*", "cudnn", Kind.ATTENTION),
    _rule(_BASE, r"reduce_wgrad_\w+", "cudnn", Kind.REDUCTION),
    _rule(_HEAD, r"^cudnn::winograd::", "cudnn", Kind.CONVOLUTION),
    _rule(_HEAD, r"^(?:cask_|cutlass_)?cudnn\w*(?:::|_)", "cudnn", Kind.OTHER),

    # cuBLAS and cuBLASLt.
    _rule(_BARE, r"nvjet_(?:sm\d+[a-z]?_)?(?P<types>[a-z]+)_\w*", "cublaslt", Kind.GEMM, _nvjet),
    _rule(_BASE, r"splitKreduce_kernel", "cublaslt", Kind.SPLITK_REDUCE, _splitk_reduce),
    _rule(_HEAD, r"^(?:cublasLt::)?epilogue::", "cublaslt", Kind.POINTWISE),
    _rule(_BARE, rf"{_ARCH}_\w*gemm\w*", "cublas", Kind.GEMM, _tokens),
    _rule(_BARE, r"sm\d+_xmma_gemm_\w*", "cublas", Kind.GEMM, _tokens),
    _rule(_HEAD, r"\bgemvx::kernel$|^cublasLt::", "cublas", Kind.GEMM),
    _rule(_BASE, r"gemv\w*|gemm(?:SN|k1)_\w+|magma_\w*gemm\w*", "cublas", Kind.GEMM),

    # CUTLASS (media/docs/profiler.md). A 2.x kernel carries its name as template argument; cuBLAS ships some without that wrapper.
    _rule(_TEXT, r"\bcutlass::Kernel2?<(?P<name>cutlass_\w+)", "cutlass", Kind.GEMM, _tokens),
    _rule(_BARE, r"cutlass(?:3x)?_\w*(?:gemm|fprop|dgrad|wgrad)\w*", "cutlass", Kind.GEMM, _tokens),
    _rule(_TEXT, r"^_ZN7cutlass\d+Kernel2?I\d+(?P<name>cutlass_\w+?_align\d+)", "cutlass", Kind.GEMM, _tokens),
    _rule(_HEAD, r"\bcutlass::device_kernel$", "cutlass", Kind.OTHER, _cutlass3),

    # ROCm (Tensile's wiki: Kernel Parameters).
    _rule(_BARE, r"(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<types>[A-Z0-9]+)_\w*",
          "tensile", Kind.GEMM, _tensile),
    _rule(_HEAD, r"^ck(?:_tile)?::(?:\w+::)*kernel_\w*gemm", "composable-kernel", Kind.GEMM),

    # ATen (aten/src/ATen/native/cuda): one kernel template per access pattern; the op is the functor among its template arguments.
    _rule(_BASE, r"reduce_kernel", "aten", Kind.REDUCTION, _functor),
    _rule(_BASE, r"\w*scatter_gather_elementwise_kernel", "aten", Kind.INDEX, op="scatter_gather"),
    _rule(_BASE, r"index_elementwise_kernel", "aten", Kind.INDEX, _functor),
    _rule(_BASE, r"\w*elementwise_kernel\w*|distribution_elementwise\w+|multi_tensor_apply_kernel",
          "aten", Kind.POINTWISE, _functor),
    _rule(_BASE, r"CatArrayBatchedCopy\w*", "aten", Kind.COPY, op="cat"),
    _rule(_BASE, r"split_with_sizes_copy\w*", "aten", Kind.COPY, op="split_with_sizes_copy"),
    _rule(_BASE, r"index(?:Select|Func)(?:Large|Small)Index|indexing_backward\w*|vectorized_gather_kernel"
          r"|embedding_backward_feature_kernel|EmbeddingBag_\w+|compute_grad_weight\w*",
          "aten", Kind.INDEX),
    _rule(_BASE, r"cunn_(?:Spatial)?SoftMax\w*|softmax_warp_(?:forward|backward)",
          "aten", Kind.REDUCTION, op="softmax"),
    _rule(_HEAD, r"^at::(?:\w+::)*\w*(?:layer_norm|LayerNorm|cuCompute|GammaBeta|RowwiseMoments)", "aten", Kind.NORM),
    _rule(_HEAD, r"^at::(?:\w+::)*batch_norm_", "aten", Kind.NORM, op="batch_norm"),
    _rule(_BASE, r"(?P<op>nll_loss)\w*|tensor_kernel_scan_\w+", "aten", Kind.REDUCTION),
    _rule(_BASE, r"fused_dropout_kernel\w*", "aten", Kind.POINTWISE, op="dropout"),
    _rule(_BASE, r"(?P<op>triu_tril)_kernel", "aten", Kind.POINTWISE),
    _rule(_BASE, r"(?P<op>im2col|col2im|vol2col|conv_depthwise[23]d)_\w*", "aten", Kind.CONVOLUTION),
    _rule(_HEAD, r"^(?:at|c10)::", "aten", Kind.OTHER),
    _rule(_BASE, r"Device(?:Segmented)?Reduce\w*", "cub", Kind.REDUCTION),
    _rule(_HEAD, r"^(?:at_cuda_detail::)?(?:cub|thrust|rocprim|hipcub)::", "cub", Kind.OTHER),

    # FBGEMM's embedding tables (fbgemm_gpu/src) and the sparse features that index them.
    _rule(_HEAD, r"^fbgemm_gpu::|^split_embedding_|^(?:permute_pooled_embs|bounds_check_indices|linearize_index)\w*kernel",
          "fbgemm", Kind.INDEX),

    # Hand-written Triton (Liger-Kernel: src/liger_kernel/ops): bare identifiers, as `extern "C"` kernels are too; the leading "_" is Triton's custom alone.
    _rule(_BARE, _LIGER, "liger", Kind.OTHER, _triton),
    _rule(_BARE, r"_(?![A-Z])\w*(?:kernel|fwd|bwd|forward|backward)\w*", "triton", Kind.OTHER, _triton),
    _rule(_BARE, r"triton_\w+", "triton", Kind.OTHER, _triton),

    # What no library above has: those of ROCm and of serving (vLLM, SGLang, aiter: csrc), by the words that they use.
    _rule(_HEAD, r"^(?:deep_ep|dpsk::ep)::", "deepep", Kind.COMMUNICATION),
    _rule(_BASE, r"(?:attn_fwd|attn_bwd|bwd_preprocess|bwd_kernel_d[kqv])\w*", "aotriton", Kind.ATTENTION),
    _rule(_BASE, r"igemm_(?:fwd|bwd|wrw)_gtc\w*|(?:miopenSp3|miopenGcn|naive_conv|gridwise_conv)\w*",
          "miopen", Kind.CONVOLUTION),
    _rule(_BASE, r"(?:batched_transpose|transpose_(?:NCHW|NHWC|CNHW)|Im2d?2?Col|Col2Im)\w*", "miopen", Kind.COPY),
    _rule(_BASE, r"MIOpenBatchNorm\w*", "miopen", Kind.NORM, op="batch_norm"),
    _rule(_BASE, r"(?:SubTensorOp|Op\dd?Tensor)\w*", "miopen", Kind.POINTWISE),
    *(_rule(_TEXT, rf"ck_tile(?:::|6)kentry.*?{word}", "composable-kernel", kind)
      for word, kind in (("Fmha", Kind.ATTENTION), ("norm", Kind.NORM), ("MoeSorting", Kind.INDEX), ("Gemm", Kind.GEMM))),
    _rule(_HEAD, r"^ck(?:_tile)?::(?:\w+::)*kernel_\w*conv", "composable-kernel", Kind.CONVOLUTION),
    _rule(_BASE, r"fft[12]d_[cr]2[cr]\w*|flip_filter|pointwise_mult_and_sum_complex\w*", "cudnn", Kind.CONVOLUTION),
    _rule(_BASE, r"bmm_\w+_sm1\d\d\w*", "trtllm", Kind.GEMM),
    _rule(_BASE, r"fmhaSm\d+\w*", "trtllm", Kind.ATTENTION),
    _rule(_BASE, r"routing[A-Z]\w*", "trtllm", Kind.INDEX),
    *(_rule(_HEAD, rf"^{name}", name.split(":")[0], kind)
      for name, kind in (
          ("flashinfer::norm::", Kind.NORM), ("flashinfer::activation::", Kind.POINTWISE),
          ("flashinfer::sampling::", Kind.INDEX), (r"flashinfer::\w*Rotary", Kind.POINTWISE),
          (r"flashinfer::(?:\w+::)*\w*(?:Prefill|Decode|Attention|MLA|Merge)", Kind.ATTENTION),
          ("flash::compute_attn", Kind.ATTENTION))
      ),
    *(_rule(_BASE, rf"\w*(?:{words})\w*", "other", kind)
      for kind, words in (
          (Kind.COPY, "reshape_and_cache|store_kvcache|concat_and_cache|copy_blocks"),
          (Kind.POINTWISE, "sage_quant|per_token_(?:group_)?(?:cast|quant)|scaled_fp8_quant|quantize_|rotary|_rope"),
          (Kind.ATTENTION, "paged_attention|unified_attention|fmha_|sage_fwd|compute_attn|mla_decode|flash_attn"),
          (Kind.NORM, "rms_?norm|layer_?norm|group_?norm|RMSNorm|LayerNorm|ln_fwd|ln_bwd"),
          (Kind.POINTWISE, "act_and_mul|silu_and_mul|swiglu"),
          (Kind.GEMM, "matmul_ogs|finalize_matmul|fused_moe|moe_gemm|fp8_gemm|sgemm_largek"),
          (Kind.INDEX, "moe_align|moe_sorting|moe_sum|combined_routing|expert_tokens"))
      ),
)
# fmt: on


@lru_cache(maxsize=4096)
def decode(raw: str) -> KernelName:
    """Decode a kernel's name. Never raises; a name that no rule knows is `Kind.OTHER` of backend "other"."""
    name = _parse_name(raw)
    for rule in _RULES:
        match = rule.match(name)
        if match:
            fields: dict[str, Any] = {"kind": rule.kind, "backend": rule.backend, "short": name.text}
            fields |= {"ops": (rule.op,)} if rule.op else {}
            fields |= rule.details(name, match)
            return KernelName(**{**fields, "raw": raw, "short": _clip(fields["short"])})
    return KernelName(raw, Kind.OTHER, "other", _clip(_base_name(name)))
