"""What is known of ATen's ops by their names: what they do, and which compute nothing. `ops.json` has the names."""

from __future__ import annotations

from pkgutil import get_data

import msgspec

from .names import Kind, kind_of_words


class _Tables(msgspec.Struct):
    """Names of ops, with spaces between them (aten/src/ATen/native/native_functions.yaml)."""

    dtypes: dict[str, str]  # C++ types as the compiler of torch spells them, and their short names
    kinds: dict[Kind, str]  # a name stands for its in-place variant too
    # These return a view or rewrite sizes and strides (aten/src/ATen/native/TensorShape.cpp, each is declared as a view or
    # alias). A reshape of a tensor that is not contiguous copies: it is composite too.
    metadata: str
    allocation: str  # these only obtain memory
    composite: str  # these only choose which other op does the work (CompositeImplicitAutograd)


_TABLES = msgspec.json.decode(get_data(__package__, "ops.json") or b"", type=_Tables)
DTYPES = _TABLES.dtypes
METADATA_OPS, ALLOCATION_OPS, COMPOSITE_OPS = (
    frozenset(f"aten::{name}" for name in names.split())
    for names in (_TABLES.metadata, _TABLES.allocation, _TABLES.composite)
)
# The profiler's type of an argument without a tensor. It writes "" for an optional tensor that is None, too.
NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_KINDS = {name: kind for kind, names in _TABLES.kinds.items() for name in names.split()}


def kind_of_op(op: str) -> Kind:
    """Return what an op of ATen does (`gelu`, `add_`): by the tables, else by the words of its name."""
    if kind := _KINDS.get(op) or _KINDS.get(op.removesuffix("_")):
        return kind
    return Kind.REDUCTION if op.endswith("softmax") else kind_of_words(op)
