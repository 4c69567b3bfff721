"""What is known of ATen's ops by their names: what they do, and which compute nothing. `ops.json` has the names."""

from __future__ import annotations

from pkgutil import get_data

import msgspec

from .names import Kind, kind_of_words


class _Tables(msgspec.Struct):
    """Names of ops, with spaces between them (aten/src/ATen/native/native_functions.yaml)."""

    dtypes: dict[str, str]  # C++ types as the compiler of torch spells them, and their short names
    kinds: dict[Kind, str]
    pointwise: str  # in place too
    # These return a view or rewrite sizes and strides (aten/src/ATen/native/TensorShape.cpp, each is declared as a view or
    # alias). A reshape copies what is not contiguous, so that it is composite too.
    metadata: str
    allocation: str  # these only obtain memory
    composite: str  # these only choose which other op does the work (CompositeImplicitAutograd)


_TABLES = msgspec.json.decode(get_data(__package__, "ops.json") or b"", type=_Tables)
DTYPES = _TABLES.dtypes
METADATA_OPS, ALLOCATION_OPS, COMPOSITE_OPS = (
    frozenset(f"aten::{name}" for name in names.split())
    for names in (_TABLES.metadata, _TABLES.allocation, _TABLES.composite)
)
# What the profiler writes in place of a type where an argument is no tensor; "" is also a tensor that was not given.
NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_KINDS = {name: Kind.POINTWISE for each in _TABLES.pointwise.split() for name in (each, f"{each}_")}
_KINDS |= {name: kind for kind, names in _TABLES.kinds.items() for name in names.split()}


def kind_of_op(op: str) -> Kind:
    """Return what an op of ATen does (`gelu`, `add_`): by the tables, else by the words of its name."""
    return _KINDS.get(op) or (Kind.REDUCTION if op.endswith("softmax") else kind_of_words(op))
