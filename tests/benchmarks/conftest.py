"""The benchmarks are scripts and no package that is installed: they are found here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
