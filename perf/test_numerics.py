"""Every variant computes the same function."""

from kernelgauge.standard import test_result_matches_float64

__all__ = ["test_result_matches_float64"]
