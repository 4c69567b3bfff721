"""What ran: traces read, kernels named. Pure: no torch, no pytest, no GPU."""

from .host import METADATA_OPS, computing_ops, dispatcher_ops, is_compile_op, metadata_ops_that_launched
from .model import ApiCall, DeviceRecord, Launch, Op, Trace, Window
from .names import KernelName, Kind, decode
from .reader import parse, read

__all__ = [
    "METADATA_OPS",
    "ApiCall",
    "DeviceRecord",
    "KernelName",
    "Kind",
    "Launch",
    "Op",
    "Trace",
    "Window",
    "computing_ops",
    "decode",
    "dispatcher_ops",
    "is_compile_op",
    "metadata_ops_that_launched",
    "parse",
    "read",
]
