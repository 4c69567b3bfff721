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


TIMERS, TOLERANCE, RATIO = (
    "device_time, end_to_end, host_dispatch",
    "a positive fraction: 0.02 is 2 %",
    "another variant",
)


@pytest.mark.parametrize(
    ("field", "value", "what", "expected"),
    [
        ("module", "my mlp", "module", "letters"),
        *(("variant", value, "variant", "letters") for value in ("a/b", "-a")),
        *(("dtype", value, "unknown dtype", "bf16, fp16, fp32, None") for value in ("float32", 16)),
        ("pass_", "backward", "unknown pass_", "forward, train"),
        ("matrix", "ful", "unknown matrix", "default, full"),
        *(("shape", value, "invalid shape", "a tuple of ints") for value in (64, ("64",))),
        ("compile", True, "invalid compile", "{} for none"),
        ("build", torch.nn.Identity(), "build is a module", "lambda: MyModule()"),
        *(("tolerance", value, "invalid tolerance", TOLERANCE) for value in (0, -0.1, math.nan, math.inf, "0.1")),
        *(
            (field, fraction, f"invalid {field}", TIMERS)
            for field in ("sensitivity", "gate")
            for fraction in ({"device_time": 0}, {"end_to_end": math.inf}, {"gpu": 0.02})
        ),
        ("faster_than", "eager", "invalid faster_than", RATIO),
        ("by", 0.1, "invalid faster_than", RATIO),
    ],
)
def test_workload_with_invalid_field_raises(field: str, value: Any, what: str, expected: str) -> None:
    with pytest.raises(WorkloadError, match=what) as raised:
        replace(workload(), **{field: value})
    error = raised.value
    assert (error.where or "").startswith("workload ")
    assert expected in (error.expected or "")
    assert repr(value) in (error.got or "")


@pytest.mark.parametrize("by", [1.0, -0.1])
def test_workload_faster_by_impossible_fraction_raises(by: float) -> None:
    with pytest.raises(WorkloadError, match="invalid faster_than"):
        workload(faster_than="compiled", by=by)
    assert workload(faster_than="compiled", by=0.05).by == 0.05


def test_callable_gives_names_shape_and_fresh_arguments() -> None:
    x, mask = torch.randn(2, 3, requires_grad=True), torch.ones(2, 3, dtype=torch.bool)
    made = Workload.from_callable(partial(torch.nn.functional.softmax, dim=-1), x, (mask, 7), scale=2)
    assert (made.id, made.pass_) == ("softmax-torch-2x3", "forward")
    (copy, (mask_copy, number)), keywords = made.inputs()
    assert (number, keywords, copy.requires_grad) == (7, {"scale": 2}, True)
    for original, fresh in ((x, copy), (mask, mask_copy)):
        assert torch.equal(fresh, original)
        assert fresh.data_ptr() != original.data_ptr()
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
