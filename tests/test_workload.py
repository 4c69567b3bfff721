"""Ids of workloads, declarations that are refused, and a run: plain data that cannot hold nonsense."""

import math
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.run import Sample, Statistic, observe, summarize


def workload(**fields: Any) -> Workload:
    return Workload("mlp", "eager", build=object, inputs=tuple, **fields)


WRONG_FRACTIONS = [
    {"device_time": 0},
    {"end_to_end": math.inf},
    {"latency": 0.02},
    {"end_to_end": "5 %"},
    0.02,
]


WRONG: dict[str, list[Any]] = {
    "module": ["my mlp"],
    "variant": ["a/b", "-a"],
    "dtype": ["float32", 16],
    "pass_": ["backward"],
    "matrix": ["ful"],
    "shape": [64, ("64",)],
    "compile": [True],
    "build": [torch.nn.Identity()],
    "tolerance": [0, -0.1, math.nan, math.inf, "0.1"],
    "sensitivity": WRONG_FRACTIONS,
    "gate": WRONG_FRACTIONS,
    "faster_than": ["eager", None],
    "by": [1.0, -0.1],
}


@pytest.mark.parametrize("field", WRONG)
def test_workload_with_invalid_field_raises(field: str) -> None:
    made = workload(faster_than="compiled", by=0.1)
    for value in WRONG[field]:
        with pytest.raises(WorkloadError) as raised:
            replace(made, **{field: value})
        assert repr(value) in (raised.value.got or "")


def test_callable_gives_names_shape_and_fresh_arguments() -> None:
    x, mask = torch.randn(2, 3, requires_grad=True), torch.ones(2, 3, dtype=torch.bool)
    made = Workload.from_callable(
        partial(torch.nn.functional.softmax, dim=-1), x, (mask, 7), scale=2
    )
    assert (made.id, made.pass_) == ("softmax-torch-2x3", "forward")
    (copy, (mask_copy, number)), keywords = made.inputs()
    assert (number, keywords, copy.requires_grad) == (7, {"scale": 2}, True)
    for original, fresh in ((x, copy), (mask, mask_copy)):
        assert torch.equal(fresh, original)
        assert fresh.data_ptr() != original.data_ptr()
    assert made.build()(torch.zeros(4)).tolist() == [0.25] * 4
    assert Workload.from_callable(lambda: None).module == "lambda"
    assert Workload.from_callable(torch.relu, torch.ones(2)).id == "relu-torch-2"


def test_module_as_callable_is_copied_for_each_replicate() -> None:
    linear = torch.nn.Linear(4, 3)
    made = Workload.from_callable(linear, torch.ones(2, 4))
    assert made.id == "Linear-torch-2x4"
    built = made.build()
    assert built is not linear
    assert torch.equal(built.weight, linear.weight)


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(4, 1).expand(4, 5),
        torch.rand(4, 10)[:, ::2],
        torch.rand(4, 5).t(),
        torch.rand(8).unfold(0, 3, 1),
    ],
    ids=["expanded", "sliced", "transposed", "overlapping"],
)
def test_copy_of_an_argument_has_its_strides(given: torch.Tensor) -> None:
    workload = Workload.from_callable(torch.relu, given, out=[given])
    ((copied,), keywords) = workload.inputs()
    for each in (copied, *keywords["out"]):
        assert torch.equal(each, given)
        assert each.stride() == given.stride()
        assert each.data_ptr() != given.data_ptr()


@pytest.mark.parametrize("value", [0.0, 9e-4, 1.1e12, math.nan])
def test_sample_with_impossible_duration_raises(value: float) -> None:
    for replicates, controls in (((1.0, value), ()), ((1.0, 2.0), (14.0, value))):
        with pytest.raises(
            ValueError, match=r"durations are positive and finite, 0\.001 to 1e\+12 us"
        ):
            Sample(replicates, 40, controls)
    assert Sample((0.001, 1e12), 40).replicates_us == (0.001, 1e12)


@pytest.mark.parametrize(
    ("durations", "statistic", "expected"),
    [
        ([1.0, 10.0, 11.0, 90.0], "interquartile mean", 10.5),
        # between two steps of the clock
        ([2.720] * 25 + [2.752] * 15, "interquartile mean", 2.728),
        ([float(value) for value in range(100, -1, -1)], "lower decile", 10.0),
        ([1.0] * 9 + [90.0] * 11, "lower decile of runs", 1.0),  # disturbed once, for long
        *(
            ([1.0, *[0.0] * (count - 1)] * 12, "lower decile of runs", 0.2) for count in (4, 5)
        ),  # a cost in each fourth call
        *(
            ([7.0] * count, statistic, 7.0)
            for count in (1, 2, 3)
            for statistic in get_args(Statistic)
        ),
    ],
)
def test_summarize_gives_the_statistic(
    durations: list[float], statistic: Statistic, expected: float
) -> None:
    assert summarize(durations, statistic) == pytest.approx(expected)


# One alone shows no spread. Of six those within 8 % of 14.0 are kept: up to 15.12.
@pytest.mark.parametrize(
    ("controls", "kept"),
    [
        ((14.0,), 1),
        ((14.0, 30.0), 2),
        ((14.0, 14.5, 30.0), 2),
        ((14.0, 14.5, 15.0, 15.1, 15.2, 25.0), 4),
    ],
)
def test_observe_keeps_replicates_of_the_fast_host(controls: tuple[float, ...], kept: int) -> None:
    times = (50.0,) * len(controls)
    assert observe(Sample(times, 40, controls)).replicates == kept
    assert observe(Sample(times, 40)).replicates == len(controls)
