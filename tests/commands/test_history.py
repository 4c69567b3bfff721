"""`kernelgauge history`: the table, the details and the page, and files that are left out."""

import json
import os
import re
from functools import partial
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results
from tests import builders
from tests.builders import HERE, fingerprint, mlp_kernels, night, results, timed, verdict, workload
from tests.commands.conftest import Command
from tests.report.pages import Parsed


class History:
    """`kernelgauge history` on one location.

    A call returns the exit code, standard output and standard error.
    """

    def __init__(self, root: Path, show: Command) -> None:
        self.root = root
        self.location = str(root)
        self._show = show

    def add(self, *several: Results) -> None:
        """Write each as `cp` does."""
        for each in several:
            folder = Path(self.location, uuid4().hex)
            folder.mkdir(parents=True)
            (folder / "results.json").write_bytes(encode_results(each))

    def show(self, *arguments: str | Path) -> tuple[int, str, str]:
        return self._show(self.location, *arguments)


@pytest.fixture
def history(tmp_path: Path, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("COLUMNS", "80")
    return History(tmp_path / "history", partial(kernelgauge, "history"))


def not_shown(out: str) -> list[str]:
    return re.findall(r"(?m)^not shown: (.*)", out.replace("\n    ", " "))


def test_table_has_a_line_for_each_workload(history: History) -> None:
    history.add(*builders.year())
    code, out, err = history.show()
    machine, heading, same, slow, _, level = out.splitlines()
    assert (code, err) == (0, "")
    assert machine == "NVIDIA H200, sm_90, 132 SMs, 700 W, GPU time"
    assert heading.split() == [
        "first",
        "us",
        "last",
        "us",
        "change",
        "verdict",
        "since",
        "workload",
    ]
    assert same.split() == ["100.0", "100.1", "+0.1", "%", "PASS", "2026-01-05", "same"]
    assert slow.split() == ["200.0", "210.2", "+5.1", "%", "REGRESSED", "2026-01-25", "slow"]
    assert level == "slower: slow +4.97 % since 2026-01-24, on 2 of 2 GPUs"
    assert max(map(len, out.splitlines())) <= 80


def test_expression_shows_details(history: History, tmp_path: Path) -> None:
    history.add(*builders.year())
    page = tmp_path / "x.html"
    code, out, _ = history.show("-k", "slow")
    assert history.show("-k", "slow", "--html", page)[::2] == (0, f"written: {page}\n")
    assert "slower: slow +4.97 % since 2026-01-24, on 2 of 2 GPUs" in page.read_text()
    drawn = [
        len(line.attributes["points"].split()) for line in Parsed(page.read_text()).all("polyline")
    ]
    assert drawn == [40, 40]  # two GPUs
    lines = out.splitlines()
    assert (code, [line.split()[-1] for line in lines[1:3]], lines[6]) == (
        0,
        ["workload", "slow"],
        "workload slow",
    )
    assert lines[7].startswith(f"  GPU {HERE}: 40 runs, 2026-01-05 to 2026-02-13, last 2")
    assert f"    2026-01-25  GPU {HERE}  driver 580.1 -> 585.1" in lines
    change = r"    2026-01-25  GPU {}  PASS -> REGRESSED, commit 0+ -> 0+: slower"
    text = re.sub(r"\n {8}", " ", out)
    assert all(re.search(change.format(gpu), text) for gpu in (HERE, builders.ELSEWHERE))
    for number, status in enumerate([Status.PASS, Status.REGRESSED, Status.PASS, Status.PASS]):
        kernels = mlp_kernels() if number < 3 else mlp_kernels()[:-1]
        history.add(night(number, timed(name="other", status=status, kernels=kernels)))
    out = history.show("-k", "other")[1]
    assert [line.split("  ")[-1] for line in out.splitlines() if "commit" in line] == [
        "REGRESSED -> PASS, commit not known -> not known",
        "PASS -> REGRESSED, commit not known -> not known",
    ]
    assert f"    2026-01-08  GPU {HERE}  other kernels" in out


def test_expression_selects_as_in_pytest(history: History) -> None:
    history.add(night(0, timed(name="mlp-eager"), timed(name="mlp-liger"), timed(name="norm")))
    for expression, expected in (
        ("lp", "mlp-eager mlp-liger"),
        ("liger or norm", "mlp-liger norm"),
        ("mlp and not liger", "mlp-eager"),
        ("lp-z", ""),
    ):
        out = history.show("-k", expression)[1]
        assert (
            re.findall(r"(?m)^ *[0-9.]+ +[0-9.]+ +[+-][0-9.]+ %  .*  (\S+)$", out)
            == expected.split()
        )


def test_kinds_of_machine_are_apart(history: History) -> None:
    cpu = fingerprint(
        device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None
    )
    for number, machine in enumerate(
        (fingerprint(), fingerprint(power_limit_watts=500.0), fingerprint(mig=True))
    ):
        history.add(night(number, timed(machine=machine)))
    history.add(*(night(0, timed(gpu=None, machine=cpu), host=host) for host in ("one", "other")))
    out = history.show("-k", "mlp")[1]
    assert re.findall(r"(?m)^(?:NVIDIA|AMD).*", out) == [
        "AMD EPYC, cpu, end to end",
        "NVIDIA H200, sm_90, 132 SMs, 500 W, GPU time",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, GPU time",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, MIG, GPU time",
    ]
    assert re.findall(r"  host \w+: 1 run", out) == ["  host one: 1 run", "  host other: 1 run"]


@pytest.mark.parametrize("text", builders.HOSTILE)
def test_hostile_names_are_escaped(history: History, tmp_path: Path, text: str) -> None:
    for day, name in (("20", text), ("21", f"{text}x")):
        changes = {"started_at": f"2026-11-{day}T19:10:12+00:00", "commit": text}
        history.add(msgspec.structs.replace(builders.hostile(name, Status.REGRESSED), **changes))
    code, out, _ = history.show("-k", "not absent", "--html", tmp_path / "x.html")
    assert (code, not_shown(out)) == (0, [])
    assert all(line.isprintable() and not line.startswith("::") for line in out.split("\n"))
    assert not {"script", "img"} & {
        each.tag for each in Parsed((tmp_path / "x.html").read_text()).elements
    }


SPOILED = workload(verdict(Status.INVALID, headline="throttled"), run=builders.run(device=(999.0,)))
NOTHING = results(workload(verdict(Status.INVALID), run=None), fingerprint=None, gpu=None)


@pytest.mark.parametrize(
    ("others", "count"),
    [
        ([night(0, timed(), timed(name="b"))], "1 run,"),  # the same time of the same run
        ([night(0, timed(), host="other")], "2 runs,"),  # of two containers on one GPU
        ([night(1, SPOILED), NOTHING], "1 run,"),
    ],
)
def test_each_valid_time_counts_once(history: History, others: list[Results], count: str) -> None:
    history.add(night(0, timed()), *others)
    out = history.show("-k", "mlp")[1]
    assert (count in out, not_shown(out)) == (True, [])


def test_history_of_a_cpu_shows_what_is_judged(history: History) -> None:
    """The time that is judged there, and the verdict of the table, which structure has made red."""
    cpu = fingerprint(
        device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None
    )
    latency = verdict(Status.PASS, "end to end")
    for number, red in enumerate((Status.PASS, Status.REGRESSED)):
        said = (
            verdict(red, "structure", "kernels differ"),
            verdict(Status.NOT_JUDGED, "CPU time"),
            latency,
        )
        run = builders.run(machine=cpu, gpu=None, end_to_end=(300.0 + number,) * 2)
        history.add(night(number, workload(*said, name="mlp", run=run)))
    machine, _, line = history.show()[1].splitlines()
    assert (machine, line.split()) == (
        "AMD EPYC, cpu, end to end",
        ["300.0", "301.0", "+0.3", "%", "REGRESSED", "2026-01-06", "mlp"],
    )
    assert "PASS -> REGRESSED, commit not known -> not known: kernels differ" in history.show(
        "-k", "mlp"
    )[1].replace("\n        ", " ")
    assert history.show("--timer", "device_time")[1].startswith("AMD EPYC, cpu, CPU time\n")


def test_name_of_a_file_is_no_pattern(history: History) -> None:
    history.root.mkdir()
    (history.root / "run[1].json").write_bytes(encode_results(night(0, timed(name="mlp"))))
    code, out, _ = history.show()
    assert (code, not_shown(out), out.split()[-1]) == (0, [], "mlp")


def test_files_that_have_no_end_are_named(history: History) -> None:
    history.add(night(0, timed(name="mlp")))
    os.mkfifo(history.root / "pipe.json")
    (history.root / "zero.json").symlink_to("/dev/zero")
    with (history.root / "sparse.json").open("wb") as file:
        file.truncate(2**40)
    code, out, _ = history.show()
    assert (code, out.splitlines()[2].split()[-1]) == (0, "mlp")
    why = [
        "pipe.json: not a regular file",
        "sparse.json: too large: 1099511627776 bytes",
        "zero.json: not a regular file",
    ]
    assert not_shown(out) == why


def test_foreign_and_forged_files_are_named_then_counted(history: History) -> None:
    history.add(night(0, timed()))
    (file,) = history.root.rglob("results.json")
    for changes, why in (
        ({"started_at": "yesterday"}, ": invalid timestamp"),
        ({"workloads": [7]}, "- at `$."),
        ({"schema_version": 9}, "Invalid enum value 9 - at `$.schema_version`"),
    ):
        file.write_text(json.dumps(json.loads(file.read_bytes()) | changes))
        code, out, _ = history.show()
        assert (code, [why in each for each in not_shown(out)]) == (1, [True])
    for name in (".hidden", "notes.txt", *(f"{number:02}\x1b.json" for number in range(14))):
        (history.root / name).write_text("{}")
    code, out, _ = history.show()
    assert (code, out.splitlines()[0]) == (1, "no workload to show")
    assert not_shown(out)[0] == "00\\x1b.json: Object missing required field `schema_version`"
    assert out.splitlines()[-1] == "and 3 more"
    history.location += "/absent"
    code, out, err = history.show()
    assert (code, out, "a folder with a results.json of each run" in err) == (2, "", True)


@pytest.mark.parametrize("location", ["absent", "s3://bucket/perf", "nonesuch://host/\x1b[2J"])
def test_location_without_results_is_an_error(kernelgauge: Command, location: str) -> None:
    code, _, err = kernelgauge("history", location)
    assert (code, "the history cannot be read" in err, "\x1b" in err) == (2, True, False), err
