"""What is injected, and the file that holds what was measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from detection.data import LEVELS, NONE, WORKLOAD_IDS, Key, Process, load_all, save

from tests.benchmarks.processes import HALF, TEN, process


def test_levels_are_of_workloads_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "perf"))
    from workloads import WORKLOADS

    assert set(WORKLOAD_IDS) == set(LEVELS) <= {workload.id for workload in WORKLOADS}


def test_recording_reads_back_in_nanoseconds(tmp_path: Path) -> None:
    saved = [process(0), process(11, gpu="b", us=3.0, levels=(HALF, TEN), seconds=0.6)]
    save(tmp_path / "raw.xz", saved)
    read = load_all([tmp_path / "raw.xz"])
    assert [(one.number, one.gpu, one.levels) for one in read] == [
        (0, "a", saved[0].levels),
        (11, "b", [HALF, TEN, NONE]),
    ]
    assert read[1].meta == saved[1].meta
    for before, after in zip(saved, read, strict=True):
        assert set(after.samples) == set(before.samples)
        for key, values in before.samples.items():
            expected = np.sort(values, axis=min(1, values.ndim - 1))  # of calls nobody reads the order
            assert after.samples[key].shape == values.shape
            assert np.abs(after.samples[key] - expected).max() <= 0.0005001
    save(tmp_path / "again.xz", read)
    assert (tmp_path / "again.xz").read_bytes() == (tmp_path / "raw.xz").read_bytes()


@pytest.mark.parametrize("value", [math.nan, 5e6, -1.0])
def test_recording_of_an_invalid_time_is_refused(value: float, tmp_path: Path) -> None:
    broken = Process("a", 1, {Key("mlp-eager", NONE, "do_bench"): np.array([value])}, {})
    with pytest.raises(ValueError, match="process 1, mlp-eager/none/do_bench"):
        save(tmp_path / "raw.xz", [broken])
