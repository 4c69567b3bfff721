"""Runs pytest inside of tests."""

import os

pytest_plugins = ["pytester"]

# Several test processes share the cores: threads and compile workers of each would wait for those of the others.
for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ.setdefault(name, "1")
