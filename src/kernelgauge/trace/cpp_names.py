"""A name as a C++ function's: its qualified name, its template arguments, and what any such name can say.

Linear in the name's length: names are untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .kernel_name import KernelName, Kind

__all__ = ["WORD", "Build", "Parsed", "base_name", "clip", "cpp", "cpp_dtype", "parse_name", "plain", "snake_case"]


class Parsed(NamedTuple):
    """The parts of a name that rules are held against and builders read."""

    raw: str
    text: str  # printable, without anonymous namespaces
    head: str  # the qualified name, without return type, template arguments and parameters
    base: str  # the last part of `head` where that is an identifier, else ""
    args: str  # the template arguments


Build = Callable[[Parsed, "re.Match[str]"], KernelName]

_SHORT_LENGTH = 60
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long|char)\)(?=[\w-])")  # Nsight writes `(int)4` for Kineto's `4`
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DTYPES = {
    "BFloat16": "bf16", "__nv_bfloat16": "bf16", "bfloat16_t": "bf16", "__hip_bfloat16": "bf16", "hip_bfloat16": "bf16",
    "Half": "fp16", "__half": "fp16", "half_t": "fp16", "half": "fp16", "float": "fp32", "double": "fp64",
    "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "__nv_fp8_e4m3": "fp8", "__nv_fp8_e5m2": "fp8",
    "float_e4m3_t": "fp8", "float_e5m2_t": "fp8", "tfloat32_t": "tf32", "complex": None,
}  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def parse_name(raw: str) -> Parsed:
    """Take any string apart; what is not printable becomes "?" everywhere but in `raw`."""
    text = raw if raw.isprintable() else "".join(c if c.isprintable() else "?" for c in raw)
    text = text.strip().removesuffix(" [clone .kd]").removesuffix(".kd")  # ROCm's suffix of a code object's symbol
    text = _CAST.sub("", _ANONYMOUS.sub("", text))
    head, args = _split(text) if "<" in text or "(" in text else (text.removeprefix("void "), "")
    base = head.rsplit("::", 1)[-1]
    return Parsed(raw, text, head, base if WORD.fullmatch(base) else "", args)


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


def clip(text: str) -> str:
    """Both ends of a long name: the end carries Inductor's number, a GEMM's layout, a library's version."""
    text = text or "(no name)"
    return text if len(text) <= _SHORT_LENGTH else f"{text[:38]}...{text[-19:]}"


def base_name(name: Parsed) -> str:
    """The last part of the qualified name; one part more where that alone says nothing."""
    if name.base in ("kernel", "globalKernel"):
        return "::".join(name.head.rsplit("::", 2)[-2:])
    return name.base or name.head or name.text


def cpp_dtype(name: Parsed) -> str | None:
    """The first element type among the template arguments."""
    return next((_DTYPES[word] for word in WORD.findall(name.args) if word in _DTYPES), None)


def snake_case(text: str) -> str:
    """`ReduceScatter` as ops are written: `reduce_scatter`."""
    return _CAMEL.sub("_", text).lower()


def cpp(kind: Kind, backend: str, *ops: str) -> Build:
    """A rule for one C++ kernel whose name says no more than this; a group `op` in its pattern names the op."""

    def build(name: Parsed, match: re.Match[str]) -> KernelName:
        named = match.groupdict().get("op")
        found = ops or ((snake_case(named),) if named else ())
        return KernelName(name.raw, kind, backend, clip(base_name(name)), found, cpp_dtype(name))

    return build


def plain(kind: Kind, backend: str) -> Build:
    """A rule for names that say no more than this, printed whole."""
    return lambda name, _: KernelName(name.raw, kind, backend, clip(name.text))
