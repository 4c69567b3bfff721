"""What ran: traces read, kernels named. Pure: no torch, no pytest, no GPU."""

from .difference import align
from .kernel import KernelIdentity, KernelRecord, dispatcher_ops, metadata_ops_that_launched
from .model import CALL, REGION, Trace, Window
from .names import KernelName, Kind, decode
from .reader import parse, parse_blocks

__all__ = [
    "CALL",
    "REGION",
    "KernelIdentity",
    "KernelName",
    "KernelRecord",
    "Kind",
    "Trace",
    "Window",
    "align",
    "decode",
    "dispatcher_ops",
    "metadata_ops_that_launched",
    "parse",
    "parse_blocks",
]
