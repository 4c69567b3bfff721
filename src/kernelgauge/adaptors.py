"""Workloads of Liger-Kernel's benchmark scripts. `examples/adaptors` has more adaptors, to copy.

An adaptor finds the callable that a benchmark times, and leaves its timing aside.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import WorkloadError
from .workload import Pass, Workload, to_name

__all__ = ["liger"]


def liger(
    script: str | Path,
    x: int | str,
    *,
    provider: str,
    config: Mapping[str, Any],
    pass_: Pass = "forward",
) -> Workload:
    """Return the workload of a script in Liger-Kernel's ``benchmark/scripts``: what its ``setup_<kernel>`` makes.

    Args:
        script: path of ``benchmark_<kernel>.py``.
        x: the value on the x axis, or a name in the script's model registry.
        provider: ``liger``, ``huggingface``, ...: the variant.
        config: what the script calls `extra_benchmark_config`: sizes, dtype, eps.
        pass_: ``forward``, or ``train`` for the script's mode ``full``.
    """
    module = _imported(Path(script))
    (setup,) = (value for name, value in vars(module).items() if name.startswith("setup_"))
    made: list[Any] = []

    def build() -> Any:
        point = module.SingleBenchmarkRunInput(
            x=x, kernel_provider=provider, kernel_operation_mode=pass_, extra_benchmark_config=dict(config)
        )
        value, layer, *_ = setup(point)
        made[:] = [value]
        return layer

    return Workload(
        module=to_name("-".join((setup.__name__.removeprefix("setup_"), *([x] if isinstance(x, str) else [])))),
        variant=to_name(provider),
        build=build,
        inputs=lambda: (made.pop(),),  # the setup makes both, and `build` comes first
        shape=(x,) if isinstance(x, int) else (),
        dtype=None,
        pass_=pass_,
    )


def _imported(script: Path) -> ModuleType:
    """Import a script once, beside the modules of its folder."""
    name = f"_kernelgauge_{to_name(str(script.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None or not script.exists():
        raise WorkloadError("no such benchmark", got=str(script), expected="the path of a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(script.resolve().parent))
    return module
