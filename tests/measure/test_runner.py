"""From what is asked to what was observed, on the CPU: kernels, counts, samples, and failures told as such."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.errors import WorkloadError, WorkloadUnavailable
from kernelgauge.measure import preparing, replicate
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.runner import Measured
from kernelgauge.measure.settings import Settings
from kernelgauge.trace import parse

Tiny = Callable[..., Workload]
Observe = Callable[..., Measured]

# Dynamo alone: the graphs are those of any backend, and nothing waits for a C++ compiler.
CAPTURED = {"backend": "eager"}


class TwoSteps(nn.Module):
    """A linear and a product: two kernels on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y * 2


class OfTwoMinds(nn.Module):
    """Its graph depends on `doubled`; its kernels do not."""

    def __init__(self, doubled: bool) -> None:
        super().__init__()
        self.doubled = doubled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.doubled else x * 3


class Broken(nn.Module):
    """A graph break between two products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y * 3


def failing_after(calls: int, error: Exception) -> Callable[[], Callable[[torch.Tensor], torch.Tensor]]:
    """Builds a function that fails at its `calls` + 1st call, counted over all replicates."""
    made = count()

    def function(x: torch.Tensor) -> torch.Tensor:
        if next(made) >= calls:
            raise error
        return x * 2

    return lambda: function


# -- what is observed -----------------------------------------------------------------------------------------------


def test_kernels_come_in_launch_order_with_their_kinds(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny(build=TwoSteps)).run
    assert run.workload == "tiny-eager-fp32"
    assert run.kernel_names() == ["aten::addmm", "aten::mul"]
    assert run.kinds() == ["gemm", "pointwise"]
    assert all(kernel.device_time_us > 0 for kernel in run.kernels)


def test_counts_of_an_eager_workload(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny(build=TwoSteps)).run
    counts = run.counts
    assert (counts.launches, counts.kernels) == (2, 2)
    assert (counts.memsets, counts.copies, counts.synchronizations) == (0, 0, 0)
    assert counts.dispatcher_ops == sum("::" in name for name in run.op_names()) > 2
    assert (counts.graph_breaks, counts.recompiles) == (0, 0)
    assert counts.peak_allocated_bytes is None


def test_a_kernel_that_runs_twice_is_two_launches_and_one_kernel(tiny: Tiny, observe: Observe) -> None:
    counts = observe(tiny(build=lambda: lambda x: x * 2 * 3)).run.counts
    assert (counts.launches, counts.kernels) == (2, 1)


def test_ops_have_the_shapes_of_their_inputs(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny()).run
    (addmm,) = [op for op in run.ops if op.name == "aten::addmm"]
    assert addmm.input_shapes[:3] == ((3,), (5, 4), (4, 3))
    assert run.op_names()[:2] == ["aten::linear", "aten::t"]


def test_a_train_pass_observes_the_backward_too(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny(pass_="train")).run
    assert run.workload == "tiny-eager-train-fp32"
    assert run.kinds().count("gemm") == 2  # the output, and the gradient of the weight
    assert "aten::add_" not in run.op_names()  # gradients are cleared: nothing is accumulated


def test_the_profiler_steps_and_the_artifacts_are_kept(tiny: Tiny, observe: Observe) -> None:
    measured = observe(tiny())
    assert measured.run.steps == 3
    assert len(parse(measured.trace_json).steps()) == 3
    assert "aten::addmm" in measured.table


def test_launches_of_a_device_are_absent_on_a_cpu(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny()).run
    assert run.launch_apis == ()
    assert run.occupancy_queries == 0
    assert run.metadata_ops_that_launched == ()


def test_the_work_of_each_kernel_is_known_where_its_op_says_enough(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny(build=lambda: nn.Linear(4, 3), inputs=lambda: (torch.randn(2, 4),))).run
    assert run.kernel_names() == ["aten::addmm"]
    (work,) = run.work
    assert work is not None
    assert work.flops == 2 * 2 * 4 * 3


def test_each_stage_is_announced(tiny: Tiny, observe: Observe) -> None:
    said: list[str] = []
    observe(tiny(), progress=said.append)
    assert said == [
        "tiny-eager-fp32: profiling",
        "timing, pass 1: 1 of 1 workloads",
    ]


# -- samples --------------------------------------------------------------------------------------------------------


def test_device_time_has_one_value_for_each_replicate(tiny: Tiny, observe: Observe, quick: Settings) -> None:
    measured = observe(tiny(build=TwoSteps))
    sample = measured.run.samples[Timer.DEVICE]
    assert len(sample.replicates_us) == quick.replicates
    assert (sample.iterations, measured.latency_iterations) == (3, 20)


def test_host_dispatch_and_end_to_end_are_not_measured_here(tiny: Tiny, observe: Observe) -> None:
    run = observe(tiny()).run
    assert set(run.samples) == {Timer.DEVICE}  # no host timer on a CPU; end-to-end is pytest-benchmark's
    assert run.sample(Timer.HOST) is None


def test_host_dispatch_is_measured_with_its_control_where_the_device_has_it(tiny: Tiny, observe_all, quick) -> None:
    class WithHost(CpuDevice):
        timers = (*CpuDevice.timers, Timer.HOST)

    sample = observe_all(tiny(), device=WithHost())["tiny eager"].run.samples[Timer.HOST]
    assert len(sample.replicates_us) == len(sample.controls_us) == quick.replicates
    assert sample.iterations == 30  # of some microseconds each: they all fit into the time


def test_every_replicate_is_built_anew(tiny: Tiny, observe: Observe, quick: Settings) -> None:
    built = count()

    def build() -> nn.Module:
        next(built)
        return nn.Linear(4, 3)

    observe(tiny(build=build))
    assert next(built) == 1 + quick.replicates  # one for the structure


def test_each_replicate_sits_elsewhere_in_memory(tiny: Tiny, observe: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    real = replicate.build

    def spy(*arguments: Any, replicate: int) -> Any:
        places.append(replicate)
        return real(*arguments, replicate=replicate)

    monkeypatch.setattr(replicate, "build", spy)
    observe(tiny())
    assert places == [0, 1]


# -- what the compiler did ------------------------------------------------------------------------------------------


def test_a_compiled_module_is_not_compiled_again_on_fresh_allocations(tiny: Tiny, observe: Observe) -> None:
    said: list[str] = []
    counts = observe(tiny(build=TwoSteps, compile=CAPTURED), progress=said.append).run.counts
    assert (counts.graph_breaks, counts.recompiles) == (0, 0)
    assert said[0] == "tiny-eager-fp32: compiling and profiling"


def test_a_module_that_changes_its_mind_is_seen_to_recompile(tiny: Tiny, observe: Observe) -> None:
    turn = count()
    workload = tiny(build=lambda: OfTwoMinds(next(turn) != 1), compile=CAPTURED)  # another graph in the first replicate
    counts = observe(workload).run.counts
    assert counts.recompiles == 1
    assert counts.graph_breaks == 0


def test_a_change_within_one_replicate_is_seen_too(tiny: Tiny, observe: Observe) -> None:
    class Flips(OfTwoMinds):
        """Changes at its third call."""

        def __init__(self) -> None:
            super().__init__(doubled=True)
            self.calls = count(1)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.doubled = next(self.calls) < 3
            return self.compiled(x)

    module = Flips()
    module.compiled = torch.compile(module.forward, backend="eager")
    assert observe(tiny(build=lambda: module)).run.counts.recompiles == 1


def test_graph_breaks_are_counted(tiny: Tiny, observe: Observe) -> None:
    counts = observe(tiny(build=Broken, compile=CAPTURED)).run.counts
    assert counts.graph_breaks == 1
    assert counts.recompiles == 0


def test_one_workload_does_not_count_what_another_compiled(tiny: Tiny, observe: Observe) -> None:
    observe(tiny(build=Broken, compile=CAPTURED))
    counts = observe(tiny(build=TwoSteps, compile=CAPTURED)).run.counts
    assert (counts.graph_breaks, counts.recompiles) == (0, 0)


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_first_call_that_fails_names_the_workload(tiny: Tiny, observe: Observe) -> None:
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: running failed"):
        observe(tiny(build=failing_after(0, ValueError("no"))))


@pytest.mark.parametrize("calls", [1, 6, 12], ids=["warming up", "profiling", "timing"])
def test_a_failure_of_the_device_while_measuring_is_a_failure_of_the_workload(
    tiny: Tiny, observe: Observe, calls: int
) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`")
    with pytest.raises(WorkloadError) as raised:
        observe(tiny(build=failing_after(calls, error)))
    assert raised.value.what == "tiny-eager-fp32: measuring failed"
    assert raised.value.got == "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_lack_of_memory_while_measuring_is_told_as_such(tiny: Tiny, observe: Observe) -> None:
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 139 GiB")
    with pytest.raises(WorkloadError) as raised:
        observe(tiny(build=failing_after(6, error)))
    assert raised.value.what == "tiny-eager-fp32: out of device memory while measuring"
    assert raised.value.got == "CUDA out of memory"


def test_a_workload_that_is_not_for_this_device_is_unavailable(tiny: Tiny, observe: Observe) -> None:
    with pytest.raises(WorkloadUnavailable, match="Triton code"):
        observe(tiny(needs_gpu="Triton code"))


def test_other_kernels_on_fresh_allocations_are_an_error_that_names_both(tiny: Tiny, observe: Observe) -> None:
    built = count()
    functions = [lambda x: x * 2, lambda x: x.cos()]
    with pytest.raises(WorkloadError, match="other kernels when it was timed than when it was profiled") as raised:
        observe(tiny(build=lambda: functions[min(next(built), 1)]))
    assert (raised.value.got, raised.value.expected) == ("aten::cos", "aten::mul")


def test_a_workload_is_warm_before_it_is_profiled(
    tiny: Tiny, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs record on the second call and replay from the third."""
    calls = count()
    at: list[int] = []
    real = preparing.profile_session

    def spy(*arguments: Any, **named: Any) -> Any:
        at.append(next(calls))
        return real(*arguments, **named)

    monkeypatch.setattr(preparing, "profile_session", spy)

    def function(x: torch.Tensor) -> torch.Tensor:
        next(calls)
        return x * 2

    observe(tiny(build=lambda: function))
    assert at[0] >= 3
