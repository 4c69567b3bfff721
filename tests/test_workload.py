"""What is asked: ids, and declarations that cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError


def workload(**fields: Any) -> Workload:
    return Workload(**({"module": "mlp", "variant": "eager", "build": object, "inputs": tuple} | fields))


def test_the_id_names_module_variant_dtype_and_shape() -> None:
    assert workload(shape=(64, 128)).id == "mlp-eager-bf16-64x128"
    assert workload().id == "mlp-eager-bf16"


def test_the_pass_stands_before_the_shape_so_that_no_id_begins_another() -> None:
    assert workload(shape=(64,), pass_="train").id == "mlp-eager-train-bf16-64"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"module": "my mlp"}, "module"),
        ({"variant": "a/b"}, "variant"),
        ({"variant": "-a"}, "variant"),
        ({"dtype": "float32"}, "unknown dtype"),
        ({"dtype": 16}, "unknown dtype"),
        ({"pass_": "backward"}, "unknown pass_"),
        ({"matrix": "ful"}, "unknown matrix"),
        ({"shape": 64}, "shape"),
        ({"shape": ("64",)}, "shape"),
        ({"compile": True}, "compile"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        workload(**fields)
    assert what in raised.value.what
    (value,) = fields.values()
    assert raised.value.got == repr(value)


@pytest.mark.parametrize("sensitivity", [{"device_time": 0}, {"device_time": -0.1}, {"gpu_time": 0.02}])
def test_workload_with_invalid_sensitivity_raises(sensitivity: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match="invalid sensitivity"):
        workload(sensitivity=sensitivity)
