"""What is injected, and the files that hold what was measured."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from detection.data import Key, Process, load, load_all, save, save_archive
from detection.levels import LEVELS, NONE, WORKLOAD_IDS, Level, peer_level

from tests.benchmarks.processes import HALF, TEN, process


class TestLevels:
    @pytest.mark.parametrize("text", ["none", "device+0.25%", "host+10%"])
    def test_level_reads_back_as_written(self, text: str) -> None:
        assert str(Level.parse(text)) == text

    @pytest.mark.parametrize("text", ["device", "device+5", "gpu+5%", "none+5%", "device+0%", "host+x%"])
    def test_level_from_other_text_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"level|float"):
            Level.parse(text)

    def test_peers_measure_each_level_equally_often(self) -> None:
        for levels in LEVELS.values():
            assert sorted(peer_level(levels, slot) for slot in range(len(levels))) == sorted(levels)

    def test_suite_has_every_workload(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf"))
        from workloads import WORKLOADS

        assert set(WORKLOAD_IDS) <= {workload.id for workload in WORKLOADS}


class TestData:
    def test_process_reads_back_as_saved(self, tmp_path: Path) -> None:
        saved = process(3, gpu="b", levels=(HALF, TEN))
        save(tmp_path / "p.npz", saved.samples, saved.meta)
        (read,) = load(tmp_path / "p.npz")
        assert (read.gpu, read.number, read.levels) == ("b", 3, [HALF, TEN, NONE])
        assert set(read.samples) == set(saved.samples)
        assert all(np.array_equal(read.samples[key], values) for key, values in saved.samples.items())

    def test_archive_keeps_nanoseconds_of_each_process(self, tmp_path: Path) -> None:
        saved = [process(0), process(11, gpu="b", us=3.0)]
        save_archive(tmp_path / "raw.npz", saved)
        read = load_all([tmp_path / "raw.npz"])
        assert [(one.number, one.gpu) for one in read] == [(0, "a"), (11, "b")]
        for before, after in zip(saved, read, strict=True):
            for key, values in before.samples.items():
                assert after.samples[key].shape == values.shape
                assert np.abs(after.samples[key] - values).max() <= 0.0005001

    @pytest.mark.parametrize("value", [math.nan, 5e6])
    def test_archive_of_invalid_time_is_refused(self, value: float, tmp_path: Path) -> None:
        broken = Process("a", 1, {Key("mlp-eager", NONE, "do_bench"): np.array([value])}, {})
        with pytest.raises(ValueError, match="process 1, mlp-eager/none/do_bench"):
            save_archive(tmp_path / "raw.npz", [broken])

    def test_archive_of_archive_is_the_same(self, tmp_path: Path) -> None:
        save_archive(tmp_path / "raw.npz", [process(0)])
        first = load_all([tmp_path / "raw.npz"])
        save_archive(tmp_path / "again.npz", first)
        (again,) = load_all([tmp_path / "again.npz"])
        assert all(np.array_equal(again.samples[key], values) for key, values in first[0].samples.items())

    def test_archive_of_equal_numbers_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="one number"):
            save_archive(tmp_path / "raw.npz", [process(1), process(1, gpu="b")])
