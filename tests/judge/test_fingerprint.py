"""Two machines: the same, with other software, or foreign to each other."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import compare
from tests.builders import H200, fingerprint


def test_a_machine_is_identical_to_itself() -> None:
    comparison = compare(H200, fingerprint())
    assert comparison.comparable
    assert (comparison.foreign, comparison.moved) == ((), ())
    assert str(comparison) == "identical"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "device NVIDIA H200 -> NVIDIA A100-SXM4-80GB"),
        ({"arch": "sm_80"}, "arch sm_90 -> sm_80"),
        ({"sm_count": 114}, "sm_count 132 -> 114"),
        ({"power_limit_watts": 500.0}, "power_limit_watts 700.0 -> 500.0"),
        ({"power_limit_watts": None}, "power_limit_watts 700.0 -> (none)"),
        ({"mig": True}, "mig False -> True"),
    ],
)
def test_another_device_or_one_cut_or_capped_is_foreign(changes: dict[str, Any], text: str) -> None:
    comparison = compare(H200, fingerprint(**changes))
    assert not comparison.comparable
    assert comparison.moved == ()
    assert str(comparison) == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"driver": "590.1"}, "driver 580.159.04 -> 590.1"),
        ({"cuda": "13.1"}, "cuda 13.0 -> 13.1"),
        ({"torch": "2.12.0"}, "torch 2.11.0+cu130 -> 2.12.0"),
        ({"triton": None}, "triton 3.6.0 -> (none)"),
        ({"liger_kernel": "0.9.0"}, "liger_kernel 0.8.5 -> 0.9.0"),
        ({"python": "3.13.0"}, "python 3.12.3 -> 3.13.0"),
        ({"cudnn": "91500"}, "cudnn 91300 -> 91500"),
        ({"fp32_matmul": "high"}, "fp32_matmul highest -> high"),
        ({"cudnn_tf32": False}, "cudnn_tf32 True -> False"),
    ],
)
def test_other_software_is_named_and_stays_comparable(changes: dict[str, Any], text: str) -> None:
    comparison = compare(H200, fingerprint(**changes))
    assert comparison.comparable
    assert comparison.foreign == ()
    assert str(comparison) == text


def test_several_changes_are_named_with_the_foreign_ones_first() -> None:
    comparison = compare(H200, fingerprint(torch="2.12.0", driver="590.1", sm_count=114))
    assert str(comparison) == "sm_count 132 -> 114, driver 580.159.04 -> 590.1, torch 2.11.0+cu130 -> 2.12.0"


def test_the_direction_is_from_the_baseline_to_the_run() -> None:
    assert str(compare(fingerprint(cuda="12.8"), H200)) == "cuda 12.8 -> 13.0"


def test_every_field_is_looked_at_and_makes_a_baseline_foreign_older_or_neither() -> None:
    kinds: dict[str, set[str]] = {"foreign": set(), "moved": set(), "recorded": set()}
    for field in H200.__struct_fields__:
        comparison = compare(H200, fingerprint(**{field: "something else"}))
        (kind,) = (name for name in kinds if getattr(comparison, name))
        kinds[kind].add(field)
    assert kinds == {
        "foreign": {"device", "arch", "sm_count", "power_limit_watts", "mig"},
        "moved": {
            *("driver", "cuda", "cudnn", "torch", "triton", "liger_kernel", "python"),
            *("fp32_matmul", "cudnn_tf32", "deterministic"),
        },
        "recorded": {"memory_bytes"},  # moves with the driver by a few MiB on one and the same device
    }


@pytest.mark.parametrize("field", ["cudnn", "fp32_matmul", "cudnn_tf32", "deterministic"])
def test_field_that_an_older_baseline_lacks_is_no_change(field: str) -> None:
    assert compare(fingerprint(**{field: None}), H200).identical


def test_what_is_only_recorded_is_compared_and_in_no_verdict() -> None:
    comparison = compare(H200, fingerprint(memory_bytes=1))
    assert comparison.comparable
    assert str(comparison) == "identical"
    assert [str(change) for change in comparison.recorded] == ["memory_bytes 150109880320 -> 1"]
