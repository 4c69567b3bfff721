"""The `perf/conftest.py` of an inner project.

It measures what `fakes.json` says: without torch, a clock or a GPU.
"""

import json
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from kernelgauge import Expectation, Run, Timer, Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadUnavailable
from kernelgauge.measure.nvml import Reading
from kernelgauge.plugin.fixtures import SESSION
from kernelgauge.run import Fingerprint, Sample

FOLDER = Path(__file__).parent
CONTENT = json.loads((FOLDER / "fakes.json").read_text())
ERRORS = {"measurement": MeasurementError, "unavailable": WorkloadUnavailable}


class FakeDevice:
    """A steady host: its reference takes 10 us, and 20 with the wait for its end."""

    warm_up_calls = 3
    gpu = CONTENT["gpu"]
    is_cpu = CONTENT["fingerprint"]["arch"] == "cpu"
    timers = (Timer.END_TO_END,) if is_cpu else (Timer.DEVICE, Timer.END_TO_END, Timer.HOST)
    host = SimpleNamespace(wait_until_fast=lambda: 10.0, round_trip_us=lambda: 20.0)
    monitor = SimpleNamespace(why_not="", read=lambda **_: Reading(), forget_others=lambda: None)

    @property
    def torch_device(self):
        return import_module("torch").device("cpu")

    @property
    def generator(self):
        return import_module("torch").default_generator

    def check(self, workload):
        if FAKES[workload.id]["error"] == "unavailable":
            raise fake_error("unavailable")

    def fingerprint(self):
        return msgspec.convert(CONTENT["fingerprint"], Fingerprint)

    def synchronize(self):
        pass

    flush_cache = forget_peak = free_memory = synchronize


def choose_device(choice):
    if not CONTENT["has_device"]:
        raise KernelgaugeError("no such device", got=choice, next_command="nvidia-smi")
    return FakeDevice()


def fake_error(kind):
    return ERRORS[kind]("the fake error", got="a fake", next_command="take another")


def note(name, workloads):
    with (FOLDER / name).open("a") as file:
        file.write(" ".join(workload.id for workload in workloads) + "\n")


def measure(fake, fingerprint, timed):
    if fake["error"]:
        return fake_error(fake["error"])
    run = msgspec.convert(fake["run"], Run)
    times = {} if timed else {"samples": {}, "incomplete": "no test of a time was selected"}
    run = msgspec.structs.replace(run, fingerprint=fingerprint, gpu=CONTENT["gpu"], **times)
    latency = {
        "latency_replicates": 4,
        "latency_iterations": 3,
        "one_instance": False,
        "durations_s": (),
    }
    rest = {"problem": fake["problem"], "trace_json": b"{}", "table": "a table\n"}
    return SimpleNamespace(run=run, **latency, **rest)


def run_process(arguments, **how):
    workloads = list(
        dict.fromkeys(
            each.partition("[")[2].removesuffix("]") for each in arguments if "::" in each
        )
    )
    # its other workload is not measured there
    assert "test_faster_than_other_variant" not in " ".join(arguments)
    note("fresh.txt", [SimpleNamespace(id=each) for each in workloads])
    fakes = [FAKES[each] for each in workloads]
    if any(each["fresh_error"] for each in fakes):
        raise fake_error("measurement")
    fingerprint = FakeDevice().fingerprint()
    return SimpleNamespace(
        runs=[measure(each | {"run": each["fresh"]}, fingerprint, True).run for each in fakes]
    )


def measure_groups(
    workloads, device, fingerprint, settings, progress, *, timed, keeps_times, replays
):
    note("measured.txt", workloads)
    progress("compiling")
    yield {each.id: measure(FAKES[each.id], fingerprint, timed) for each in workloads}


def time_latency(workload, measured):
    return Sample((200.0, 201.0, 202.0, 200.5), 40, (20.0,) * 4)


def build():
    return lambda x: time.sleep(0.001)


def inputs():
    import torch

    return (torch.zeros(2),)


def declare(fake):
    expectation = Expectation("seen somewhere", kinds=tuple(fake["kinds"]))
    fields = fake["declared"] | {"shape": tuple(fake["declared"]["shape"])}
    return Workload(build=build, inputs=inputs, expectations=(expectation,), **fields)


WORKLOADS = [declare(fake) for fake in CONTENT["fakes"]]
FAKES = {workload.id: fake for workload, fake in zip(WORKLOADS, CONTENT["fakes"], strict=True)}


def pytest_kernelgauge_workloads():
    return WORKLOADS


@pytest.hookimpl(trylast=True)  # after the plugin's own
def pytest_configure(config):
    # else this suite is found while collecting, and the plugin's hooks after it
    if SESSION in config.stash:
        pytest_collection_modifyitems(config)


def pytest_collection_modifyitems(config):
    session = config.stash[SESSION]
    session.measure_groups, session.choose_device = measure_groups, choose_device
    if run_process:
        session.run_process = run_process
    if time_latency:
        session.time_latency = time_latency
    session.settings = replace(session.settings, latency_replicates=4)
