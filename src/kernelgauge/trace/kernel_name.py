"""What a kernel's name says once it is decoded: the vocabulary that `names.py` and its readers share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["KernelName", "Kind"]


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
