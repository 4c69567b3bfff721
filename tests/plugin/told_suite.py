"""Becomes the `perf/conftest.py` of an inner project: `told.json` says what is measured. No torch, no clock, no GPU."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelgauge import Expectation, Run, Timer, Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure.settings import Settings
from kernelgauge.plugin import GAUGE_KEY
from kernelgauge.run import Counts, Fingerprint, KernelIdentity, KernelRecord, Sample

FOLDER = Path(__file__).parent
TOLD = json.loads((FOLDER / "told.json").read_text())
ERRORS = {"measurement": MeasurementError, "workload": WorkloadError, "unavailable": WorkloadUnavailable}


class ToldDevice:
    timers = tuple(Timer(name) for name in TOLD["timers"])

    @property
    def torch_device(self):
        import torch

        return torch.device("cpu")

    @property
    def host(self):
        return self

    def wait_until_fast(self):
        return 10.0  # the control of a steady host

    control_us = wait_until_fast

    def check(self, workload):
        pass

    def synchronize(self):
        pass

    def flush_cache(self):
        pass

    def fingerprint(self):
        return Fingerprint(**TOLD["fingerprint"])


def choose(choice):
    if TOLD["no_device"]:
        raise KernelgaugeError("no such device", got=choice, next_command="nvidia-smi")
    return ToldDevice()


def measure(workload, device, fingerprint, settings, progress):
    with (FOLDER / "measured.txt").open("a") as file:  # so that a test can tell what was measured, and how often
        file.write(workload.id + "\n")
    told = next(told for told in TOLD["workloads"] if make_workload(told).id == workload.id)
    progress("compiling")
    if told["error"]:
        raise ERRORS[told["error"]]("the told error", got="what was told", next_command="tell another")
    kernels = tuple(KernelRecord(KernelIdentity(**identity), us) for identity, us in told["kernels"])
    counts = {"launches": len(kernels), "kernels": len(kernels), "memsets": 0, "copies": 0, "synchronizations": 0}
    counts |= {"dispatcher_ops": 5, "graph_breaks": 0, "recompiles": 0, "peak_allocated_bytes": None}
    run = Run(
        workload=workload.id,
        fingerprint=fingerprint,
        kernels=kernels,
        counts=Counts(**counts | told["counts"]),
        samples={Timer(name): Sample(tuple(values), 40) for name, values in told["samples"].items()},
    )
    return SimpleNamespace(run=run, iterations=3, trace_json=b"{}", table="a table\n")


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
    gauge = config.stash[GAUGE_KEY]
    gauge.measurer, gauge.choose, gauge.settings = measure, choose, Settings(replicates=4)
