"""Becomes the `perf/conftest.py` of an inner project: `told.json` says what is measured. No torch, no clock, no GPU."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from kernelgauge import Expectation, Run, Timer, Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure.conditions import Reading
from kernelgauge.plugin.fixtures import SESSION
from kernelgauge.run import Counts, Fingerprint, Sample
from kernelgauge.trace import KernelIdentity, KernelRecord

FOLDER = Path(__file__).parent
TOLD = json.loads((FOLDER / "told.json").read_text())
ERRORS = {"measurement": MeasurementError, "workload": WorkloadError, "unavailable": WorkloadUnavailable}


class ToldHost:
    """A steady one: its control takes 10 us, and 20 with the wait for its end."""

    def wait_until_fast(self):
        return 10.0

    def round_trip_us(self):
        return 20.0


class ToldDevice:
    warm_up_calls = 3
    gpu = TOLD["gpu"]
    timers = tuple(Timer(name) for name in TOLD["timers"])
    host = ToldHost()
    monitor = SimpleNamespace(available=True, why_not="", read=lambda **_: Reading())

    @property
    def torch_device(self):
        import torch

        return torch.device("cpu")

    def check(self, workload):
        if told_of(workload)["error"] == "unavailable":
            raise told_error("unavailable")

    def synchronize(self):
        pass

    def flush_cache(self):
        pass

    def forget_peak(self):
        pass

    def fingerprint(self):
        return Fingerprint(**TOLD["fingerprint"])


def choose(choice):
    if TOLD["no_device"]:
        raise KernelgaugeError("no such device", got=choice, next_command="nvidia-smi")
    return ToldDevice()


def write_down(name, workloads):
    """So that a test can tell what was measured or confirmed, how often, and together with what."""
    with (FOLDER / name).open("a") as file:
        file.write(" ".join(workload.id for workload in workloads) + "\n")


def told_of(workload):
    return next(told for told in TOLD["workloads"] if make_workload(told).id == workload.id)


def told_samples(samples):
    """The host's timers come with a control."""
    return {
        Timer(name): Sample(tuple(values), 40, () if name == "device_time" else (10.0,) * len(values))
        for name, values in samples.items()
    }


def told_error(kind):
    return ERRORS[kind]("the told error", got="what was told", next_command="tell another")


class Group:
    """All workloads are one group."""

    def __init__(self, workloads, fingerprint, progress, timed):
        self.workloads, self.progress = workloads, progress
        self.results = {each.id: measure_one(each, told_of(each), fingerprint, timed) for each in workloads}

    def confirm(self, slower):
        named = set(slower)
        for workload in self.workloads:
            if workload.id in named:
                self.results[workload.id] = confirm(workload, self.results[workload.id], self.progress)


def measure_groups(workloads, device, fingerprint, settings, progress, *, timed, deterministic):
    write_down("measured.txt", workloads)
    progress("compiling")
    yield Group(workloads, fingerprint, progress, timed)


def measure_one(workload, told, fingerprint, timed):
    if told["error"]:
        return told_error(told["error"])
    kernels = tuple(KernelRecord(KernelIdentity(**identity), us) for identity, us in told["kernels"])
    counts = {"launches": len(kernels), "kernels": len(kernels), "memsets": 0, "copies": 0, "synchronizations": 0}
    counts |= {"dispatcher_ops": 5, "graph_breaks": 0, "recompiles": 0, "peak_allocated_bytes": None}
    run = Run(
        workload=workload.id,
        fingerprint=fingerprint,
        kernels=kernels,
        counts=Counts(**counts | told["counts"]),
        samples={} if told["incomplete"] or not timed else told_samples(told["samples"]),
        incomplete=told["incomplete"] if timed else "no test of a time was selected",
        gpu=TOLD["gpu"],
    )
    return SimpleNamespace(
        run=run,
        latency_replicates=4,
        latency_iterations=3,
        trace_json=b"{}",
        table="a table\n",
        one_instance=False,
        not_confirmed=None,
    )


def confirm(workload, measured, progress):
    """Adds what the workload tells of itself "again": what was measured before stays."""
    write_down("confirmed.txt", [workload])
    progress(f"{workload.id}: measuring again")
    told = told_of(workload)
    if told["confirm_error"]:
        return SimpleNamespace(**vars(measured) | {"not_confirmed": told_error(told["confirm_error"])})
    samples = {
        timer: measured.run.samples[timer].joined(sample).joined(sample)
        for timer, sample in told_samples(told["again"] or told["samples"]).items()
    }
    return SimpleNamespace(**vars(measured) | {"run": msgspec.structs.replace(measured.run, samples=samples)})


def build():
    import time

    return lambda x: time.sleep(0.001)


def inputs():
    import torch

    return (torch.zeros(2),)


def make_workload(told):
    return Workload(
        module=told["module"],
        variant=told["variant"],
        build=build,
        inputs=inputs,
        shape=tuple(told["shape"]),
        matrix=told["matrix"],
        expectations=(Expectation("seen somewhere", kinds=tuple(told["expected_kinds"])),),
    )


WORKLOADS = [make_workload(told) for told in TOLD["workloads"]]


def pytest_kernelgauge_workloads():
    return WORKLOADS


@pytest.hookimpl(trylast=True)  # after the plugin's own
def pytest_configure(config):
    if SESSION in config.stash:  # else this suite is found while collecting, and the plugin's hooks after it
        tell(config)


def pytest_collection_modifyitems(config):
    tell(config)


def tell(config):
    session = config.stash[SESSION]
    session.measure_groups, session.choose_device = measure_groups, choose
    session.settings = replace(session.settings, latency_replicates=4)
