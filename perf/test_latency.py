"""Times against the baseline of this machine: GPU time, end-to-end latency, host dispatch time."""

from kernelgauge.standard import test_device_time, test_end_to_end_latency, test_host_dispatch_time

__all__ = ["test_device_time", "test_end_to_end_latency", "test_host_dispatch_time"]
