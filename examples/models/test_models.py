"""The standard tests of each model."""

from kernelgauge.standard import *  # noqa: F403
