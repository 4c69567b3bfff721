"""`benchmarks/confirmations.py` tells what a confirmation added from what was measured first."""

from __future__ import annotations

import sys
from pathlib import Path

import confirmations
import pytest

from kernelgauge.results import encode_results
from tests.builders import run
from tests.report.pages import results, workload


def test_of_each_that_was_confirmed_it_says_how_far_the_second_part_lies_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    times_us = {
        "long": [200.0] * 12 + [201.0] * 24,
        "drifting": [200.0] * 6 + [202.0] * 6 + [201.0] * 24,
        "short": [3.0] * 12 + [3.3] * 24,
        "once": [200.0] * 32,
    }
    told = [workload(name, observed=run(workload=name, device=times)) for name, times in times_us.items()]
    file = tmp_path / "results.json"
    file.write_bytes(encode_results(results(*told)))
    monkeypatch.setattr(sys, "argv", ["confirmations.py", str(file)])
    confirmations.main()
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[4]) for line in said[:3]] == [("long", "+0.50"), ("drifting", "+0.00"), ("short", "+10.00")]
    # Those of 100 us and more.
    assert [" ".join(line) for line in said[3:]] == [
        "again: 0.35 % (root mean square of 2)",
        "halves of the first: 0.71 % (root mean square of 2)",
        "halves of the rest: 0.00 % (root mean square of 2)",
    ]
