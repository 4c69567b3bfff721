"""Ids of workloads, and declarations that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError


def workload(**fields: Any) -> Workload:
    return Workload(**({"module": "mlp", "variant": "eager", "build": object, "inputs": tuple} | fields))


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


@pytest.mark.parametrize("field", ["sensitivity", "gate"])
@pytest.mark.parametrize(("timer", "fraction"), [("device_time", 0), ("end_to_end", math.inf), ("gpu", 0.02)])
def test_workload_with_invalid_fraction_raises(field: str, timer: str, fraction: float) -> None:
    with pytest.raises(WorkloadError, match=f"invalid {field}") as raised:
        workload(**{field: {timer: fraction}})
    assert (raised.value.where, raised.value.got) == ("workload mlp-eager", f"{timer!r}: {fraction!r}")
    assert "device_time, end_to_end, host_dispatch" in (raised.value.expected or "")
    assert getattr(workload(**{field: {"host_dispatch": 0.02}}), field) == {"host_dispatch": 0.02}
