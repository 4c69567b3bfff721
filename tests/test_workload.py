"""Ids of workloads, declarations that are refused, and a run: plain data that cannot hold nonsense."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.run import Sample, Statistic, observe, summarize


def workload(module: str = "mlp", variant: str = "eager", **fields: Any) -> Workload:
    return Workload(module, variant, build=object, inputs=tuple, **fields)


@pytest.mark.parametrize(
    ("fields", "id_"),
    [
        ({}, "mlp-eager-bf16"),
        ({"shape": (64,), "pass_": "train"}, "mlp-eager-train-bf16-64"),  # no id begins another
        ({"shape": (64, 128), "dtype": None}, "mlp-eager-64x128"),
    ],
)
def test_workload_id_names_its_fields(fields: dict[str, Any], id_: str) -> None:
    assert workload(**fields).id == str(workload(**fields)) == id_


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("module", "my mlp", "module"),
        ("variant", "a/b", "variant"),
        ("variant", "-a", "variant"),
        ("dtype", "float32", "unknown dtype"),
        ("dtype", 16, "unknown dtype"),
        ("pass_", "backward", "unknown pass_"),
        ("matrix", "ful", "unknown matrix"),
        ("shape", 64, "shape"),
        ("shape", ("64",), "shape"),
        ("compile", True, "compile"),
    ],
)
def test_workload_with_invalid_field_raises(field: str, value: Any, what: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        workload(**{field: value})
    assert what in raised.value.what
    assert raised.value.got == repr(value)


def test_workload_that_is_built_already_raises() -> None:
    with pytest.raises(WorkloadError, match="build is a module") as raised:
        replace(workload(), build=torch.nn.Identity())
    assert "lambda: MyModule()" in (raised.value.expected or "")


@pytest.mark.parametrize("tolerance", [0, -0.1, math.nan, math.inf, "0.1"])
def test_workload_with_invalid_tolerance_raises(tolerance: Any) -> None:
    with pytest.raises(WorkloadError, match="invalid tolerance"):
        workload(tolerance=tolerance)


@pytest.mark.parametrize("field", ["sensitivity", "gate"])
@pytest.mark.parametrize(("timer", "fraction"), [("device_time", 0), ("end_to_end", math.inf), ("gpu", 0.02)])
def test_workload_with_invalid_fraction_raises(field: str, timer: str, fraction: float) -> None:
    with pytest.raises(WorkloadError, match=f"invalid {field}") as raised:
        workload(**{field: {timer: fraction}})
    assert (raised.value.where, raised.value.got) == ("workload mlp-eager", repr({timer: fraction}))
    assert "device_time, end_to_end, host_dispatch" in (raised.value.expected or "")
    assert getattr(workload(**{field: {"host_dispatch": 0.02}}), field) == {"host_dispatch": 0.02}


@pytest.mark.parametrize(
    "fields",
    [
        {"faster_than": "eager"},
        {"faster_than": "compiled", "by": 1.0},
        {"faster_than": "compiled", "by": -0.1},
        {"by": 0.1},
    ],
    ids=["itself", "all", "negative", "nobody"],
)
def test_workload_with_invalid_ratio_raises(fields: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="invalid faster_than"):
        workload(**fields)
    assert workload(faster_than="compiled", by=0.05).by == 0.05


def test_callable_gives_names_shape_and_fresh_arguments() -> None:
    x, mask = torch.randn(2, 3, requires_grad=True), torch.ones(2, 3, dtype=torch.bool)
    made = Workload.from_callable(partial(torch.nn.functional.softmax, dim=-1), x, (mask, 7), scale=2)
    assert (made.module, made.variant, made.shape, made.dtype, made.pass_) == (
        "softmax",
        "torch",
        (2, 3),
        None,
        "forward",
    )
    positional, keywords = made.inputs()
    assert keywords == {"scale": 2}
    assert torch.equal(positional[0], x)
    assert positional[0].requires_grad
    assert positional[0].data_ptr() != x.data_ptr()
    assert positional[1][1] == 7
    assert positional[1][0].data_ptr() != mask.data_ptr()
    assert made.build()(torch.zeros(4)).tolist() == [0.25] * 4


def test_module_as_callable_is_copied_for_each_replicate() -> None:
    linear = torch.nn.Linear(4, 3)
    made = Workload.from_callable(linear, torch.ones(2, 4))
    assert made.id == "Linear-torch-2x4"
    built = made.build()
    assert built is not linear
    assert torch.equal(built.weight, linear.weight)


def test_function_without_a_plain_name_has_one() -> None:
    assert Workload.from_callable(lambda: None).module == "lambda"
    assert Workload.from_callable(torch.relu, torch.ones(2)).id == "relu-torch-2"


STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


@pytest.mark.parametrize("value", [0.0, -1.0, 9e-4, 1.1e12, 1e308, math.nan, math.inf])
def test_sample_with_impossible_duration_raises(value: float) -> None:
    for replicates, controls in (((1.0, value), ()), ((1.0, 2.0), (14.0, value))):
        with pytest.raises(ValueError, match=r"durations are positive and finite, 0\.001 to 1e\+12 us"):
            Sample(replicates, 40, controls)
    assert Sample((0.001, 1e12), 40).replicates_us == (0.001, 1e12)


def test_sample_with_unequal_counts_raises() -> None:
    with pytest.raises(ValueError, match="at least one replicate"):
        Sample((), 40)
    for controls in ((14.0,), (14.0,) * 3):
        with pytest.raises(ValueError, match=f"{len(controls)} controls for 2 replicates"):
            Sample((1.0, 2.0), 40, controls)


@pytest.mark.parametrize(
    ("durations", "statistic", "expected"),
    [
        ([1.0, 10.0, 11.0, 90.0], "interquartile mean", 10.5),
        ([90.0, 12.0, 10.0, 1.0, 11.0, 13.0, 2.0, 80.0], "interquartile mean", 11.5),
        ([2.720] * 25 + [2.752] * 15, "interquartile mean", 2.728),  # between two steps of the clock
        ([float(value) for value in range(100, -1, -1)], "lower decile", 10.0),
        *(([7.0] * count, statistic, 7.0) for count in (1, 2, 3) for statistic in STATISTICS),
    ],
)
def test_summarize_gives_the_statistic(durations: list[float], statistic: Statistic, expected: float) -> None:
    assert summarize(durations, statistic) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("controls", "kept"),
    [
        ((14.0,), 1),
        ((14.0, 30.0), 2),  # one alone shows no spread
        ((14.0, 14.5, 30.0), 2),
        ((14.0, 14.5, 15.0, 15.1, 15.2, 25.0), 4),  # within 8 % of 14.0: up to 15.12
    ],
)
def test_observe_keeps_replicates_of_the_fast_host(controls: tuple[float, ...], kept: int) -> None:
    times = (50.0,) * len(controls)
    assert observe(Sample(times, 40, controls)).replicates == kept
    assert observe(Sample(times, 40)).replicates == len(controls)
