"""Times against the baseline of this machine: GPU time, end-to-end latency, host dispatch time,
compile times.
"""

from kernelgauge.standard import (
    test_cold_compile_time,
    test_device_time,
    test_end_to_end_latency,
    test_host_dispatch_time,
    test_warm_compile_time,
)

__all__ = [
    "test_cold_compile_time",
    "test_device_time",
    "test_end_to_end_latency",
    "test_host_dispatch_time",
    "test_warm_compile_time",
]
