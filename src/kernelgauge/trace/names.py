"""A GPU kernel's name decoded: what the kernel does, which library it is from, and a name short
enough to print.

A rule about names is one row of `names.json`: the library, the kind, the part of the name that a
pattern is matched with, the pattern, and the function below that reads the details. The first row
that matches wins. The rules follow the sources that the file names, recordings of an H200, and
public profiles (docs/design/public-traces.md). Names come from traces and are untrusted: `decode`
accepts any string, in time linear in its length, and only `raw` keeps unprintable characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pkgutil import get_data
from typing import Any, NamedTuple

import msgspec


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
    """A decoded name.

    A field is None, empty or False where the name does not say: absence is no statement.
    """

    raw: str  # byte for byte as in the trace: the only field to compare kernels by
    kind: Kind
    backend: str  # the library
    short: str  # to print; never empty, all printable, and with less than 200 characters whole
    ops: tuple[str, ...] = ()  # of a kernel of Inductor's, the words of all that it merges
    dtype: str | None = None  # of the inputs
    tile: str | None = None  # MxN of one thread block
    stages: str | None = None  # depth in K x number of pipeline stages
    # t(ransposed) or n(ot) of A and B, and of C where there is a third letter
    layout: str | None = None
    split_k: bool = False
    bias_epilogue: bool = False


class _Rule(msgspec.Struct, array_like=True):
    """One row of the table.

    The details that the name itself gives replace `backend`, `kind` and `op`.
    """

    backend: str
    kind: Kind
    # of `_Parsed`: `text` and `head` are searched, `base` and `bare` match as a whole, in linear
    # time
    scope: str
    pattern: str
    details: str = "cpp"
    op: str = ""


class _Rules(msgspec.Struct):
    rows: list[_Rule]


class _Table(msgspec.Struct):
    rules: list[_Rules]
    words: list[tuple[Kind, str]]
    cpp_types: dict[str, str | None]
    token_types: dict[str, str]
    blas_letters: dict[str, str]
    # The first letters are those of A and B: `tst` ran on bf16 (seen on H200, torch 2.11), `hss`
    # and `hsh` on fp16 with fp32 and fp16 outputs, `qqtst` on fp8 with a bf16 output (public
    # profiles of cuBLASLt). Others are not decoded.
    nvjet_letters: dict[str, str]
    # The first three letters of the heuristic (codegen/triton.py: define_kernel,
    # wrapper_benchmark.py: its choices). "unk" is any other heuristic: upstream the cooperative
    # reductions, elsewhere whole backends.
    inductor: dict[str, Kind]
    functors: dict[str, str]
    kinds_of_functors: dict[str, Kind]
    same_ops: dict[str, str]


_TABLE = msgspec.json.decode(get_data(__package__, "names.json") or b"", type=_Table)
_RULES = [
    (rule, re.compile(rule.pattern, re.ASCII)) for group in _TABLE.rules for rule in group.rows
]
_WORDS_OF_KINDS = [
    (kind, re.compile(rf"(?:^|[_ ])(?:{words})(?:_|$)")) for kind, words in _TABLE.words
]


@lru_cache(maxsize=4096)
def decode(raw: str) -> KernelName:
    """Decode a kernel's name.

    Never raises; a name that no rule knows is `Kind.OTHER` of backend "other".
    """
    name = _parse_name(raw)
    for rule, pattern in _RULES:
        text = getattr(name, rule.scope)
        match = pattern.search(text) if rule.scope in ("text", "head") else pattern.fullmatch(text)
        if match:
            fields: dict[str, Any] = {
                "kind": rule.kind,
                "backend": rule.backend,
                "short": name.text,
            }
            fields |= {"ops": (rule.op,)} if rule.op else {}
            fields |= _DETAILS[rule.details](name, match) if rule.details != "whole" else {}
            return KernelName(**{**fields, "raw": raw, "short": _clip(fields["short"])})
    return KernelName(raw, Kind.OTHER, "other", _clip(_base_name(name)))


def kind_of_words(text: str) -> Kind:
    """Return the kind that words of a Triton kernel or of an op say; the first wins: `index_add` is
    no addition.
    """
    text = _snake_case(text)
    return next((kind for kind, words in _WORDS_OF_KINDS if words.search(text)), Kind.OTHER)


class _Parsed(NamedTuple):
    """The parts of a name that patterns are matched with and details are read from."""

    text: str  # printable, without anonymous namespaces
    head: str  # the qualified name, without return type, template arguments and parameters
    base: str  # the last part of `head` where that is an identifier, else ""
    bare: str  # `base` of a name that has nothing else, else ""
    args: str  # the template arguments


_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
# Nsight writes `(int)4` for Kineto's `4`
_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long|char)\)(?=[\w-])")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,4}")


def _parse_name(raw: str) -> _Parsed:
    """Split any string into its parts; what is not printable becomes "?"."""
    text = raw if raw.isprintable() else "".join(c if c.isprintable() else "?" for c in raw)
    # ROCm's suffix of a code object's symbol
    text = text.strip().removesuffix(" [clone .kd]").removesuffix(".kd")
    text = _CAST.sub("", _ANONYMOUS.sub("", text))
    if text.startswith("_Z"):
        head, args = _split_mangled(text)
    else:
        head, args = (
            _split_function(text)
            if "<" in text or "(" in text
            else (text.removeprefix("void "), "")
        )
    last = head.rsplit("::", 1)[-1]
    base = last if _WORD.fullmatch(last) else ""
    return _Parsed(text, head, base, base if base == text else "", args)


def _split_function(text: str) -> tuple[str, str]:
    """Return a C++ function's qualified name and its last template arguments, up to a bracket that
    stays open.
    """
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


def _split_mangled(text: str) -> tuple[str, str]:
    """Return `ck::kernel_gemm` and the rest of `_ZN2ck11kernel_gemmI...`: the scopes up to the
    first that has arguments.
    """
    parts, at = [], 3 if text.startswith("_ZN") else 2
    while length := _LENGTH.match(text, at):
        at = length.end() + int(length[0])
        parts.append(text[length.end() : at])
    return "::".join(
        part for part in parts if part and not part.startswith("_GLOBAL__N")
    ) or text, text[at:]


def _clip(text: str) -> str:
    """Keep both ends of a long name: the end has Inductor's number, a GEMM's layout, a library's
    version.
    """
    text = text or "(no name)"
    return text if len(text) <= 200 else f"{text[:98]}...{text[-99:]}"


def _base_name(name: _Parsed) -> str:
    """Return the last part of the qualified name; one part more where that alone says nothing."""
    if name.base in ("kernel", "globalKernel"):
        return "::".join(name.head.rsplit("::", 2)[-2:])
    return name.base or name.head or name.text


def _snake_case(text: str) -> str:
    """Spell `ReduceScatter` as ops are written: `reduce_scatter`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()


# --- the details of a name: each function returns fields of `KernelName`, which replace those of
# its rule ------------

_Match = re.Match[str]
_Fields = dict[str, Any]


def _cpp(name: _Parsed, match: _Match) -> _Fields:
    """Read a C++ name; a group `op` of the pattern is the op, the first element type of the
    arguments the type.
    """
    types = (
        _TABLE.cpp_types[word] for word in _WORD.findall(name.args) if word in _TABLE.cpp_types
    )
    op = match.groupdict().get("op")
    fields = {
        "short": _base_name(name),
        "dtype": next(types, None),
        **({"ops": (_snake_case(op),)} if op else {}),
    }
    # Of split-K, the first type is the accumulator's.
    return (
        fields | {"dtype": None, "split_k": True} if name.base == "splitKreduce_kernel" else fields
    )


# with `_0d1d2de` of Triton 2.x
_TRAILING_ID = re.compile(r"(?:^|_)\d{1,9}(?:_(?:\d+[cde]+)+)?$", re.ASCII)
# Inductor joins the names of the ops that it merges with "_", which they contain too:
# `_unsafe_view_gelu_mul` (torch/_inductor/utils.py: get_fused_kernel_name). Words tell as much as
# names.
_REDUCING = re.compile(
    r"(?<!clamp_)(?<![a-z])(?:all|amax|amin|any|argmax|argmin|count_nonzero|(?:log)?cum(?:prod|sum|sumexp)|logsumexp|max|mean"
    r"|median|min|norm(?!_legit_no)|prod|softmax|std|sum|var)(?:_|$)(?!gather|reduce|to_all|pool)"
)


def _inductor(_: _Parsed, match: _Match) -> _Fields:
    groups = match.groupdict()
    merged, category = groups["rest"], groups.get("category")
    kind = _TABLE.inductor.get(category or "poi", Kind.OTHER)
    if category == "tem":
        kind = kind_of_words(merged)
    elif category in ("unk", None) and _REDUCING.search(merged):
        kind = Kind.REDUCTION
    words = tuple(dict.fromkeys(filter(None, _TRAILING_ID.sub("", merged).split("_"))))
    # `graph_N_` of a C++ kernel is left out of `short`: N counts the graphs of the process.
    return {"ops": words, "kind": kind, **({"short": groups["name"]} if "name" in groups else {})}


_SPLIT_WORD = re.compile(r"[_<>()\s,:]+")
_TILE = re.compile(
    r"(?:\b|_|tilesize)(?P<mn>\d{1,5}x\d{1,5})(?:x(?P<k>\d{1,5}))?(?=\b|_)", re.ASCII
)
_STAGES = re.compile(r"_(?:stages|\d{1,5}x\d{1,5})_(\d{1,5}x\d{1,5})(?=\b|_)", re.ASCII)
# the depth is the tile's
_STAGE_COUNT = re.compile(r"_stage(\d{1,3})_|_\d+x\d+x\d+_(\d{1,3})_[tn]{3}_", re.ASCII)
_LAYOUT = re.compile(r"[tn]{2,3}|[NT]{3}")
_SPLIT_K = re.compile(r"split_?k(?!reduce)", re.IGNORECASE)
_CONVOLUTION = re.compile(r"fprop|dgrad|wgrad|cudnn|convolve")
_ARITHMETIC = re.compile(
    r"(?P<letter>[a-z]?)(?P<size>\d*)(?P<types>bf16|tf32|f16)?(?:gemm|cudnn|fprop|dgrad|wgrad)",
    re.ASCII,
)


def _tokens(name: _Parsed, match: _Match) -> _Fields:
    """Read a name of cuBLAS, cuDNN or CUTLASS, word by word; a group `name` of the pattern is the
    part that counts.
    """
    text = match.groupdict().get("name") or name.text
    tokens = _SPLIT_WORD.split(text)
    tile, stages, count = _TILE.search(text), _STAGES.search(text), _STAGE_COUNT.search(text)
    counted = f"{tile['k']}x{count[1] or count[2]}" if tile and tile["k"] and count else None
    return {
        "short": text,
        "dtype": _token_type(tokens),
        "tile": tile["mn"] if tile else None,
        "stages": stages[1] if stages else counted,
        "layout": next(filter(_LAYOUT.fullmatch, tokens), None),
        "split_k": bool(_SPLIT_K.search(text)),
        "bias_epilogue": "bias" in tokens,
        **({"kind": Kind.CONVOLUTION} if _CONVOLUTION.search(text) else {}),
    }


def _token_type(tokens: list[str]) -> str | None:
    """Return the type of the inputs: CUTLASS and cuBLAS write [output] arithmetic [inputs].

    `s1688gemm` alone is TF32 or an emulation of fp32, so it has no answer here.
    """
    known = _TABLE.token_types
    found = (
        (at, match) for at, token in enumerate(tokens) if (match := _ARITHMETIC.fullmatch(token))
    )
    at, arithmetic = next(found, (-1, None))
    said = [arithmetic["types"]] if arithmetic else []
    types = [
        known[token] for token in (*tokens[at + 1 :], *tokens[: at + 1], *said) if token in known
    ]
    if types:
        return "tf32" if "tf32" in types else types[0]
    if arithmetic is None or (arithmetic["size"] and arithmetic["letter"] != "h"):
        return None
    return _TABLE.blas_letters.get(arithmetic["letter"])


def _nvjet(name: _Parsed, match: _Match) -> _Fields:
    types = re.fullmatch(r"(?P<inputs>qq|[a-z])(?:s[a-z]|[a-z]s[a-z])", match["types"])
    return _tokens(name, match) | {
        "dtype": _TABLE.nvjet_letters.get(types["inputs"]) if types else None
    }


def _tensile(name: _Parsed, match: _Match) -> _Fields:
    tile = re.search(r"_MT([0-9]{1,5}x[0-9]{1,5})x[0-9]", name.text)
    split = re.search(r"_GSU([0-9]{1,3})_", name.text)  # GlobalSplitU
    return {
        "dtype": {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["types"][:1]),
        "tile": tile[1] if tile else None,
        "layout": ("n" if match["a"] == "Ailk" else "t") + ("n" if match["b"] == "Bljk" else "t"),
        "split_k": bool(split and int(split[1]) > 1),
    }


def _cutlass3(name: _Parsed, match: _Match) -> _Fields:
    """Read the template argument: `device_kernel` is CUTLASS 3's one entry point."""
    marks = ("Universal", "FlashAttn", "Fmha")
    what = next(
        (word for word in _WORD.findall(name.args) if any(mark in word for mark in marks)), ""
    )
    fields = _cpp(name, match) | {"short": f"device_kernel<{what}>" if what else "device_kernel"}
    if "FlashAttn" in what or "Fmha" in what or "fmha" in name.args:
        return fields | {
            "kind": Kind.ATTENTION,
            "backend": "flash" if "FlashAttn" in what else "cutlass",
        }
    if "ConvUniversal" in what:
        return fields | {"kind": Kind.CONVOLUTION}
    return fields | {"kind": Kind.GEMM if "gemm" in name.args.lower() else Kind.OTHER}


def _nccl(name: _Parsed, match: _Match) -> _Fields:
    types = {**_TABLE.cpp_types, **_TABLE.token_types}
    dtype = next((types[token] for token in name.head.split("_") if token in types), None)
    return {"short": name.head, "ops": (_snake_case(match["op"]),), "dtype": dtype}


_FUNCTOR = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)|launch_(\w+)|(\w+?)_?[Ff]unctor|(\w+?)Ops"
    r"|(\w+?)_?(?:CUDA)?[Kk]ernel(?:_?[Ii]mpl)?(?:_cuda)?|(\w+?)_cuda(?:_out|_)?",
    re.ASCII,
)
_WRAPPER = re.compile(
    r"[AB]?(?:Unary|Binary|Ternary|Pointwise)(?:Op\w*)?|gpu(?:_index)?|opmath\w*", re.ASCII
)


def _functor(name: _Parsed, match: _Match) -> _Fields:
    """Read the op of an ATen kernel template from its functor; the op may say another kind than the
    template.
    """
    fields = _cpp(name, match)
    op = _functor_op(name.args)
    if op:
        fields |= {"short": f"{fields['short']}<{op}>", "ops": (op,)}
        kind = Kind.INDEX if op.startswith("index") else _TABLE.kinds_of_functors.get(op)
        fields |= {"kind": kind} if kind else {}
    return fields


def _functor_op(args: str) -> str | None:
    """Return the op that the first functor among ATen's template arguments names; wrappers are
    passed over.
    """
    for word in _WORD.findall(args):
        if word in _TABLE.functors:
            return _TABLE.functors[word]
        match = _FUNCTOR.fullmatch(word)
        stem = next(filter(None, match.groups()), "") if match else ""
        if stem and not _WRAPPER.fullmatch(stem):
            op = _snake_case(stem)
            return (
                "copy"
                if op.endswith("_copy") and not op.startswith("index")
                else _TABLE.same_ops.get(op, op)
            )
    return None


def _triton(name: _Parsed, _: _Match) -> _Fields:
    """Read the words of a hand-written kernel.

    Its op is what stands before the pass; a backward says so.
    """
    passed = re.search(r"_(forward|backward|fwd|bwd)(?=_|$)", name.text)
    op = (name.text[: passed.start()] if passed else re.sub(r"_kernel.*", "", name.text)).strip("_")
    if op and passed and passed[1].startswith("b"):
        op += "_backward"
    return {"kind": kind_of_words(name.text), "ops": (op,) if op else ()}


_READERS = _cpp, _inductor, _tokens, _nvjet, _tensile, _cutlass3, _nccl, _functor, _triton
_DETAILS = {reader.__name__.removeprefix("_"): reader for reader in _READERS}
