"""What ran: traces read, kernels named. Pure: no torch, no pytest, no GPU."""

from .difference import align
from .kernel import (
    METADATA_OPS,
    KernelIdentity,
    KernelRecord,
    computing_ops,
    dispatcher_ops,
    identity_of,
    identity_of_op,
    metadata_ops_that_launched,
)
from .model import REGION, Launch, Op, Trace, Window
from .names import KernelName, Kind, decode
from .reader import parse, parse_blocks

__all__ = [
    "METADATA_OPS",
    "REGION",
    "KernelIdentity",
    "KernelName",
    "KernelRecord",
    "Kind",
    "Launch",
    "Op",
    "Trace",
    "Window",
    "align",
    "computing_ops",
    "decode",
    "dispatcher_ops",
    "identity_of",
    "identity_of_op",
    "metadata_ops_that_launched",
    "parse",
    "parse_blocks",
]
