"""Becomes the `perf/conftest.py` of an inner project: `told.json` says what is measured. No torch, no clock, no GPU."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from kernelgauge import Expectation, Run, Timer, Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure.nvml import Reading
from kernelgauge.plugin.fixtures import SESSION
from kernelgauge.run import Counts, Fingerprint, Sample
from kernelgauge.trace import KernelIdentity, KernelRecord

FOLDER = Path(__file__).parent
TOLD = json.loads((FOLDER / "told.json").read_text())
ERRORS = {"measurement": MeasurementError, "workload": WorkloadError, "unavailable": WorkloadUnavailable}
COUNTS = dict.fromkeys(["memsets", "copies", "synchronizations", "graph_breaks", "recompiles"], 0)


class ToldDevice:
    """Its host is a steady one: the control takes 10 us, and 20 with the wait for its end."""

    warm_up_calls = 3
    gpu = TOLD["gpu"]
    timers = (Timer.DEVICE, Timer.END_TO_END, Timer.HOST)
    host = SimpleNamespace(wait_until_fast=lambda: 10.0, round_trip_us=lambda: 20.0)
    monitor = SimpleNamespace(available=True, why_not="", read=lambda **_: Reading())

    @property
    def torch_device(self):
        import torch

        return torch.device("cpu")

    def check(self, workload):
        if told_of(workload)["error"] == "unavailable":
            raise told_error("unavailable")

    def fingerprint(self):
        return Fingerprint(**TOLD["fingerprint"])

    def synchronize(self):
        pass

    flush_cache = forget_peak = synchronize


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
    """All workloads are one group. A confirmation adds what a workload tells of itself "again"."""

    def __init__(self, workloads, fingerprint, progress, timed):
        self.workloads, self.progress = workloads, progress
        self.results = {each.id: measure_one(each, told_of(each), fingerprint, timed) for each in workloads}

    def confirm(self, slower):
        named = set(slower)
        for workload in self.workloads:
            if workload.id in named:
                write_down("confirmed.txt", [workload])
                self.progress(f"{workload.id}: measuring again")
                self.confirm_one(told_of(workload), self.results[workload.id])

    def confirm_one(self, told, measured):
        if told["confirm_error"]:
            measured.not_confirmed = told_error(told["confirm_error"])
            return
        again = told_samples(told["again"] or told["samples"])
        samples = {timer: measured.run.samples[timer].joined(each).joined(each) for timer, each in again.items()}
        measured.run = msgspec.structs.replace(measured.run, samples=samples)


def measure_groups(workloads, device, fingerprint, settings, progress, *, timed, deterministic):
    write_down("measured.txt", workloads)
    progress("compiling")
    yield Group(workloads, fingerprint, progress, timed)


def measure_one(workload, told, fingerprint, timed):
    if told["error"]:
        return told_error(told["error"])
    kernels = tuple(KernelRecord(KernelIdentity(**identity), us) for identity, us in told["kernels"])
    counts = {**COUNTS, "launches": len(kernels), "kernels": len(kernels), "dispatcher_ops": 5}
    run = Run(
        workload=workload.id,
        fingerprint=fingerprint,
        kernels=kernels,
        counts=Counts(**{**counts, "peak_allocated_bytes": None, **told["counts"]}),
        samples={} if told["incomplete"] or not timed else told_samples(told["samples"]),
        incomplete=told["incomplete"] if timed else "no test of a time was selected",
        gpu=TOLD["gpu"],
    )
    latency = {
        "latency_replicates": 4,
        "latency_iterations": 3,
        "one_instance": False,
        "not_confirmed": None,
        "problem": told.get("problem", ""),
    }
    return SimpleNamespace(run=run, trace_json=b"{}", table="a table\n", **latency)


def build():
    import time

    return lambda x: time.sleep(0.001)


def inputs():
    import torch

    return (torch.zeros(2),)


def make_workload(told):
    fields = {name: told.get(name) for name in ("module", "variant", "matrix", "faster_than")}
    expected = Expectation("seen somewhere", kinds=tuple(told["expected_kinds"]))
    return Workload(build=build, inputs=inputs, shape=tuple(told["shape"]), expectations=(expected,), **fields)


WORKLOADS = [make_workload(told) for told in TOLD["workloads"]]


def pytest_kernelgauge_workloads():
    return WORKLOADS


@pytest.hookimpl(trylast=True)  # after the plugin's own
def pytest_configure(config):
    if SESSION in config.stash:  # else this suite is found while collecting, and the plugin's hooks after it
        pytest_collection_modifyitems(config)


def pytest_collection_modifyitems(config):
    session = config.stash[SESSION]
    session.measure_groups, session.choose_device = measure_groups, choose
    session.settings = replace(session.settings, latency_replicates=4)
