"""Workloads of benchmarks that exist: Triton's `perf_report`, tritonbench's operators, Liger's
scripts. Copy this file beside a `conftest.py`.

Each adaptor finds the callable that a benchmark times, and leaves its timing aside. The projects
are imported when an adaptor is called, and must be installed.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest.mock import patch

from kernelgauge import Workload, WorkloadError

# -- triton.testing.perf_report --------------------------------------------------------------------


def perf_report(benchmark: Any) -> list[Workload]:
    """Return a workload for each x value and each line of ``@triton.testing.perf_report``.

    The plot's name is the module, the line the variant, and the numbers on the x axis the shape.
    Each replicate calls the benchmark's function again, for fresh tensors, up to its first
    `do_bench`.

    Args: benchmark: what the decorator returned, or the path of a script. All its benchmarks are
        taken, and their own `run` does nothing while the script is imported.
    """
    import triton.testing

    if isinstance(benchmark, (str, Path)):
        with patch.object(triton.testing.Mark, "run"):
            module = _imported(Path(benchmark))
        marks = [each for each in vars(module).values() if isinstance(each, triton.testing.Mark)]
        return [workload for mark in marks for workload in perf_report(mark)]
    plots = (
        benchmark.benchmarks
        if isinstance(benchmark.benchmarks, (list, tuple))
        else [benchmark.benchmarks]
    )
    return [
        _of_point(benchmark.fn, plot, x, line)
        for plot in plots
        for x in plot.x_vals
        for line in plot.line_vals
    ]


def _of_point(function: Callable[..., Any], plot: Any, x: Any, line: Any) -> Workload:
    """Return the workload of a point of a plot, whose x is a value for each name of the x axis, or
    one for all.
    """
    values = x if isinstance(x, (list, tuple)) else [x] * len(plot.x_names)
    named = dict(zip(plot.x_names, values, strict=True)) | {plot.line_arg: line} | plot.args
    others = (str(value) for value in values if not isinstance(value, int))
    return Workload(
        module=to_name("-".join((plot.plot_name or function.__name__, *others))),
        variant=to_name(str(line)),
        build=partial(_timed_by, function, named),
        inputs=tuple,
        shape=tuple(value for value in values if isinstance(value, int)),
        dtype=None,
    )


class _Timed(BaseException):
    """Ends a benchmark at what it times: a function, and tensors.

    No `except Exception` of its own may stop it.
    """


def _timed_by(function: Any, named: Mapping[str, Any]) -> Callable[[], Any]:
    """Run a benchmark up to its first `do_bench`, whatever name it has there, and return what it
    would time.
    """
    import torch
    import triton.testing

    def stand_in(fn: Callable[[], Any], *_: Any, grad_to_none: Any = None, **__: Any) -> None:
        raise _Timed(fn, grad_to_none or ())

    timers = (triton.testing.do_bench, triton.testing.do_bench_cudagraph)
    # some make another one current
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
    try:
        with torch.cuda.stream(stream), torch.enable_grad(), ExitStack() as stack:
            for scope in (vars(triton.testing), function.__globals__):
                names = [
                    name for name, value in scope.items() if any(value is each for each in timers)
                ]
                stack.enter_context(patch.dict(scope, dict.fromkeys(names, stand_in)))
            function(**named)
    except _Timed as timed:
        return _with_gradients(*timed.args)
    raise WorkloadError(
        "the benchmark never called do_bench",
        expected="a function that calls triton.testing.do_bench",
    )


def _with_gradients(
    function: Callable[[], Any], grad_to_none: Sequence[Any] = ()
) -> Callable[[], Any]:
    """Call a function as benchmarks do: with autograd, since it may call `backward`, and with
    gradients cleared.
    """
    import torch

    def call() -> Any:
        for tensor in grad_to_none:
            tensor.grad = None
        with torch.enable_grad():
            return function()

    return call


# -- tritonbench -----------------------------------------------------------------------------------


def tritonbench(operator: str, *arguments: str, inputs: Sequence[int] = (0,)) -> list[Workload]:
    """Return a workload for each enabled implementation of an operator of tritonbench, and each
    input.

    The operator is the module, the implementation the variant, and the number of the input the
    shape.

    Args:
        operator: its name, such as ``rms_norm``.
        arguments: of tritonbench's command line, such as ``--bwd`` or ``--precision``, ``bf16``.
        inputs: numbers of the inputs that the operator yields, from 0.
    """
    from tritonbench.operators import load_opbench_by_name
    from tritonbench.utils.parser import get_parser
    from tritonbench.utils.triton_op import REGISTERED_BENCHMARKS

    kind = load_opbench_by_name(operator)

    def build(implementation: str, index: int) -> Callable[[], Any]:
        import torch

        with torch.enable_grad():
            benchmark = kind(*get_parser().parse_known_args(["--op", operator, *arguments]))
            for _ in range(index + 1):
                benchmark.example_inputs = benchmark.get_example_inputs()
            return _with_gradients(benchmark._get_bm_func(implementation))

    return [
        Workload(
            module=to_name(operator),
            variant=to_name(name),
            build=partial(build, name, index),
            inputs=tuple,
            shape=(index,),
            dtype=None,
        )
        for index in inputs
        for name, implementation in REGISTERED_BENCHMARKS[operator].items()
        if implementation.enabled
    ]


# -- Liger-Kernel's benchmark/scripts --------------------------------------------------------------


def liger(
    script: str | Path,
    x: int | str,
    *,
    provider: str,
    config: Mapping[str, Any],
    pass_: Literal["forward", "train"] = "forward",
) -> Workload:
    """Return the workload of a script in Liger-Kernel's ``benchmark/scripts``: what its
    ``setup_<kernel>`` makes.

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
            x=x,
            kernel_provider=provider,
            kernel_operation_mode=pass_,
            extra_benchmark_config=dict(config),
        )
        value, layer, *_ = setup(point)
        made[:] = [value]
        return layer

    return Workload(
        module=to_name(
            "-".join((setup.__name__.removeprefix("setup_"), *([x] if isinstance(x, str) else [])))
        ),
        variant=to_name(provider),
        build=build,
        inputs=lambda: (made.pop(),),  # the setup makes both, and `build` comes first
        shape=(x,) if isinstance(x, int) else (),
        dtype=None,
        pass_=pass_,
    )


# -- scripts and names -----------------------------------------------------------------------------


def _imported(script: Path) -> ModuleType:
    """Import a script once, beside the modules of its folder."""
    name = f"_benchmark_{to_name(str(script.resolve()))}"  # no module's own name
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None or not script.exists():
        raise WorkloadError(
            "no such benchmark", got=str(script), expected="the path of a Python file"
        )
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


def to_name(text: str) -> str:
    """Return a text as a name of a module or variant: ``fused-attention (fp16)`` is
    ``fused-attention-fp16``.
    """
    return "-".join(re.findall(r"[A-Za-z0-9_]+", text))
