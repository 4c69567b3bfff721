"""`kernelgauge history show`: the charts, and what is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from kernelgauge.judge.verdict import Status
from tests.builders import (
    ELSEWHERE,
    H200,
    HERE,
    HOSTILE,
    fingerprint,
    hostile,
    mlp_kernels,
    results,
    run,
    verdict,
    workload,
)
from tests.history.conftest import History, night, timed, year
from tests.report.pages import Parsed


def rows(out: str) -> list[tuple[str, str]]:
    """Return last time and name of each workload in a table."""
    return re.findall(r"(?m)^ *[0-9.]+ +([0-9.]+) +[+-][0-9.]+ %  .*  (\S+)$", out)


def not_shown(out: str) -> list[str]:
    return re.findall(r"(?m)^not shown: (.*)", out)


def test_table_has_a_line_for_each_workload(any_history: History) -> None:
    any_history.add(*year())
    code, out, err = any_history.show()
    machine, heading, same, slow = out.splitlines()
    assert (code, err) == (0, "")
    assert machine == "NVIDIA H200, sm_90, 132 SMs, 700 W, GPU time"
    assert heading.split() == ["first", "us", "last", "us", "change", "verdict", "since", "workload"]
    assert same.split() == ["100.0", "100.1", "+0.1", "%", "PASS", "2026-01-05", "same"]
    assert slow.split() == ["200.0", "210.2", "+5.1", "%", "REGRESSED", "2026-01-25", "slow"]
    assert max(map(len, out.splitlines())) <= 80


def test_pattern_shows_details(history: History) -> None:
    history.add(*year())
    code, out, _ = history.show("slow")
    lines = out.splitlines()
    assert (code, [line.split()[-1] for line in lines[1:3]], lines[4]) == (0, ["workload", "slow"], "workload slow")
    assert lines[5].startswith(f"  GPU {HERE}: 40 runs, 2026-01-05 to 2026-02-13, last 2")
    assert f"    2026-01-25  GPU {HERE}  driver 580.1 -> 585.1" in lines
    change = r"    2026-01-25  GPU {}  PASS -> REGRESSED, commit 0+ -> 0+: slower"
    text = re.sub(r"\n {8}", " ", out)
    assert all(re.search(change.format(gpu), text) for gpu in (HERE, ELSEWHERE))
    assert max(map(len, lines)) <= 80


def test_other_kernels_and_a_returning_verdict_are_named(history: History) -> None:
    for number, status in enumerate([Status.PASS, Status.REGRESSED, Status.PASS, Status.PASS]):
        kernels = mlp_kernels() if number < 3 else mlp_kernels()[:-1]
        history.add(night(number, timed(name="a", status=status, kernels=kernels)))
    out = history.show("a")[1]
    assert "PASS     2026-01-07" in out
    assert [line.split("  ")[-1] for line in out.splitlines() if "commit" in line] == [
        "REGRESSED -> PASS, commit not known -> not known",
        "PASS -> REGRESSED, commit not known -> not known",
    ]
    assert f"    2026-01-08  GPU {HERE}  other kernels" in out


def test_pattern_is_a_part_of_an_id(history: History) -> None:
    history.add(night(0, timed(name="mlp-eager"), timed(name="mlp-liger"), timed(name="norm")))
    for patterns, expected in {
        (): ["mlp-eager", "mlp-liger", "norm"],
        ("lp",): ["mlp-eager", "mlp-liger"],
        ("mlp-*",): ["mlp-eager", "mlp-liger"],
        ("liger", "no?m"): ["mlp-liger", "norm"],
        ("lp-*z",): [],
    }.items():
        assert [name for _, name in rows(history.show(*patterns)[1])] == expected


def test_kinds_of_machine_are_apart(history: History) -> None:
    machines = (H200, fingerprint(power_limit_watts=500.0), fingerprint(mig=True), fingerprint(sm_count=None))
    for number, machine in enumerate(machines):
        history.add(night(number, timed(machine=machine)))
    assert re.findall(r"(?m)^NVIDIA.*", history.show()[1]) == [
        "NVIDIA H200, sm_90, 132 SMs, 500 W, GPU time",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, GPU time",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, MIG, GPU time",
        "NVIDIA H200, sm_90, 700 W, GPU time",
    ]


def test_cpu_is_named_by_its_host(history: History) -> None:
    cpu = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None)
    for host in ("one", "other"):
        history.add(night(0, timed(gpu=None, machine=cpu), gpu=None, host=host))
    out = history.show("mlp")[1]
    assert "AMD EPYC, cpu, CPU time" in out
    assert re.findall(r"  host \w+: 1 run", out) == ["  host one: 1 run", "  host other: 1 run"]


def test_times_of_any_size_are_drawn(history: History, tmp_path: Path) -> None:
    for number, us in enumerate((2e-3, 9e11, 2e-3, 9e11, 205.0, 1.0)):
        history.add(night(number, timed(us, name="wide"), timed(1e-3, name="small")))
    assert history.show("--html", str(tmp_path / "x.html"))[0] == 0
    assert "nan" not in (tmp_path / "x.html").read_text()


def test_page_is_self_contained(history: History, tmp_path: Path) -> None:
    history.add(*year())
    code, _, err = history.show("slow", "--html", str(tmp_path / "x.html"))
    text = (tmp_path / "x.html").read_text()
    page = Parsed(text)
    assert (code, err) == (0, f"written: {tmp_path / 'x.html'}\n")
    assert [len(line.attributes["points"].split()) for line in page.all("polyline")] == [40, 40]  # two GPUs
    assert not {"script", "link", "img", "iframe"} & {each.tag for each in page.elements}
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert f"GPU {HERE}  driver 580.1 -&gt; 585.1" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_escaped(history: History, tmp_path: Path, text: str) -> None:
    for day, name in (("20", text), ("21", f"{text}x")):
        changes = {"started_at": f"2026-11-{day}T19:10:12+00:00", "commit": text}
        history.add(msgspec.structs.replace(hostile(name, Status.REGRESSED), **changes))
    code, out, _ = history.show("*", "--html", str(tmp_path / "x.html"))
    assert (code, not_shown(out)) == (0, [])
    assert all(line.isprintable() and not line.startswith("::") for line in out.split("\n"))
    assert not {"script", "img"} & {each.tag for each in Parsed((tmp_path / "x.html").read_text()).elements}


def test_equal_times_of_one_run_are_one_night(history: History) -> None:
    history.add(night(0, timed(name="a")), night(0, timed(name="a"), timed(name="b")))
    out = history.show("a")[1]
    assert ("1 run," in out, not_shown(out)) == (True, [])


def test_runs_of_two_containers_on_one_gpu_are_two_nights(history: History) -> None:
    history.add(*(night(0, timed(), host=host) for host in ("one", "other")))
    assert "2 runs," in history.show("mlp")[1]


def test_invalid_times_are_not_shown(history: History) -> None:
    spoiled = workload(verdict(Status.INVALID, headline="throttled"), run=run(device=(999.0,)))
    nothing = results(workload(verdict(Status.INVALID), run=None), fingerprint=None, gpu=None)
    history.add(night(0, timed()), night(1, spoiled))
    history.add(nothing)
    out = history.show("mlp")[1]
    assert ("1 run," in out, not_shown(out)) == (True, [])


def test_foreign_files_are_named_then_counted(history: History) -> None:
    history.add(night(0, timed()))
    forge(history, schema_version=9)
    for name in (".hidden", "notes.txt", "copy [1].json", *(f"{number:02}\x1b.json" for number in range(14))):
        (history.root / name).write_text("{}")
    code, out, _ = history.show()
    assert (code, out.splitlines()[0]) == (1, "no workload to show")
    assert not_shown(out)[0] == "00\\x1b.json: Object missing required field `schema_version`"
    assert out.splitlines()[-1] == "and 3 more"
    for path in history.root.glob("*.json"):
        path.unlink()
    assert ["results.json: " in each for each in not_shown(history.show()[1])] == [True]


def forge(history: History, time: dict[str, Any] | None = None, **changes: Any) -> None:
    """Change the one file."""
    (file,) = history.root.rglob("results.json")
    told = json.loads(file.read_bytes())
    told["workloads"][0]["run"]["samples"]["device_time"].update(time or {})
    file.write_text(json.dumps(told | changes))


@pytest.mark.parametrize("us", [-1.0, 0.0009, 1.1e12])
def test_impossible_time_is_not_shown(history: History, us: float) -> None:
    history.add(night(0, timed()))
    forge(history, {"replicates_us": [us]})
    assert history.show()[0] == 1


@pytest.mark.parametrize("change", [{"workloads": [7]}, {"fingerprint": {"mig": "x"}}])
def test_forged_field_is_named(history: History, change: dict[str, Any]) -> None:
    history.add(night(0, timed()))
    forge(history, **change)
    code, out, _ = history.show()
    assert (code, "- at `$." in not_shown(out.replace("\n    ", " "))[0]) == (1, True)


def test_invalid_timestamp_is_named(history: History) -> None:
    history.add(night(0, timed()))
    forge(history, started_at="yesterday")
    assert ": invalid timestamp" in history.show()[1].replace("\n    ", " ")


def test_missing_history_is_an_error(history: History) -> None:
    code, out, err = history.show()
    assert (code, out, "there is no results.json of a run" in err) == (2, "", True)


def test_object_that_stands_for_a_folder_is_not_a_file(history: History) -> None:
    history.location = "memory://folders/history"
    history.add(night(0, timed(name="a")))
    store = fsspec.filesystem("memory").store
    store["/folders/history/2027/"] = store[next(iter(store))]
    out = history.show()[1]
    store.clear()
    assert (rows(out), not_shown(out)) == ([("205.0", "a")], [])
