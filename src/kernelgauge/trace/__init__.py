"""What ran: traces read, kernels named. Pure: no torch, no pytest, no GPU."""

from .difference import align
from .kernel import KernelIdentity, KernelRecord, identity_of, identity_of_op
from .model import REGION, Launch, Op, Trace, Window
from .names import KernelName, Kind, decode
from .ops import METADATA_OPS
from .reader import parse, parse_blocks
from .summary import computing_ops, dispatcher_ops, metadata_ops_that_launched

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
