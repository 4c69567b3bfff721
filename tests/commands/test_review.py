"""`kernelgauge review` and `kernelgauge accept`, as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results
from tests.builders import ELSEWHERE, HERE, counts, fingerprint, mlp_kernels, pair, run
from tests.commands.conftest import Command
from tests.test_acceptance import DEVICE, passing, told
from tests.test_results import HOSTILE, hostile, verdict

SLOWER = (225.0, 225.1, 225.2, 225.3)
EAGER, COMPILED, LINEAR, GONE = "mlp-eager-bf16-4x8", "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8", "old-x-bf16-1"


@pytest.fixture
def command(tmp_path: Path, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """In a folder with what a run of pytest leaves where it stands, and not under CI."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CI", raising=False)
    return kernelgauge


def left(content: Results, folder: str = "reports/latest") -> Path:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.json").write_bytes(encode_results(content))
    return path


def stored() -> set[str]:
    return set(BaselineStore(Path("baselines")).stored(DEVICE))


def content() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in Path("baselines").glob("*/*.json")}


def of(workload: str, **changes: Any) -> Any:
    return passing(name=workload, run=run(workload=workload, **changes))


def recorded(command: Command) -> None:
    """Four baselines: of three workloads, and of one that is declared no more."""
    left(told(*map(of, (EAGER, COMPILED, LINEAR, GONE)), started_at="2026-11-01T00:00:00+00:00"))
    assert command("accept")[0] == 0
    assert stored() == {EAGER, COMPILED, LINEAR, GONE}


def upgraded() -> Results:
    """After an upgrade: one the same, one slower, one with other kernels; one new, one gone."""
    machine = fingerprint(driver="590.1")
    regressed = verdict(Status.REGRESSED, workload=COMPILED)
    return told(
        of(EAGER, machine=machine),
        passing(regressed, name=COMPILED, run=run(workload=COMPILED, machine=machine, device=SLOWER)),
        of(LINEAR, machine=machine, kernels=mlp_kernels()[:3], counts=counts(launches=3, kernels=2)),
        of("new-x-bf16-1", machine=machine),
        fingerprint=machine,
    )


# -- review -----------------------------------------------------------------------------------------------------------


def test_a_review_of_what_is_stored_is_settled(command: Command) -> None:
    recorded(command)
    code, out, err = command("review")
    assert (code, err) == (0, "")
    assert "same kernels, same speed: 4" in out
    assert str(Path("reports/latest/results.json")) in out


def test_a_review_after_an_upgrade_has_every_group_and_waits(command: Command) -> None:
    recorded(command)
    left(upgraded())
    before = content()
    code, out, _ = command("review")
    assert code == 1
    assert "moved    driver 580.159.04 -> 590.1   (3 workloads)" in out
    for title in ("same speed: 1", "slower or faster: 1", "other counts: 1", "new: 1", "vanished: 1"):
        assert title in out
    assert content() == before


def test_a_review_as_markdown(command: Command) -> None:
    left(told(of(EAGER)))
    code, out, _ = command("review", "--markdown")
    assert code == 1
    assert out.startswith("```text\nNVIDIA H200: 1 workload\n")
    assert f"\n  {EAGER}\n" in out


def test_results_and_baselines_may_lie_anywhere(command: Command, tmp_path: Path) -> None:
    folder = left(told(of(EAGER)), "elsewhere")
    assert command("accept", folder, "--baselines", tmp_path / "stored")[0] == 0
    assert (tmp_path / "stored" / "nvidia-h200" / f"{EAGER}.json").exists()
    assert command("review", folder / "results.json", "--baselines", tmp_path / "stored")[0] == 0
    assert command("review", folder)[0] == 1


def test_the_same_results_twice_are_named(command: Command) -> None:
    folder = left(told(of(EAGER)))
    _, out, _ = command("review", folder, folder)
    assert "skipped  reports/latest/results.json: the same results as" in out


@pytest.mark.parametrize("name", ["review", "accept"])
@pytest.mark.parametrize("wrong", [None, b"", b"{}", b'{"schema_version": 99}'])
def test_results_that_cannot_be_read_are_trouble_and_nothing_is_written(
    command: Command, name: str, wrong: bytes | None
) -> None:
    if wrong is not None:
        left(told())
        Path("reports/latest/results.json").write_bytes(wrong)
    code, out, err = command(name)
    assert (code, out) == (2, "")
    assert str(Path("reports/latest/results.json")) in err or str(Path("reports/latest")) in err
    assert not Path("baselines").exists()


# -- accept, as a script says it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (("--group", "same-speed"), {EAGER}),
        (("--group", "speed"), {COMPILED}),
        (("--group", "kernels"), {LINEAR}),
        (("--group", "new"), {"new-x-bf16-1"}),
        (("--group", "vanished"), {GONE}),
        (("--group", "same-speed", "--group", "speed"), {EAGER, COMPILED}),
        (("-k", "mlp"), {EAGER, COMPILED}),
        (("-k", "mlp and not EAGER"), {COMPILED}),
        (("-k", "(linear or new) and bf16"), {LINEAR, "new-x-bf16-1"}),
        (("--group", "speed", "-k", "linear"), set()),
        (("--group", "kernels", "-k", "linear"), {LINEAR}),
        (("--group", "configuration"), set()),
        ((), {EAGER, COMPILED, LINEAR, GONE, "new-x-bf16-1"}),
    ],
)
def test_what_is_asked_for_is_stored_and_nothing_else(
    command: Command, arguments: tuple[str, ...], changed: set[str]
) -> None:
    recorded(command)
    before = content()
    left(upgraded())
    code, out, _ = command("accept", *arguments)
    after = content()
    assert code == 0
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == changed
    assert (f"{len(changed)} written to baselines" if changed else "nothing to accept") in out


def test_a_dry_run_shows_the_plan_and_writes_nothing(command: Command) -> None:
    recorded(command)
    before = content()
    left(upgraded())
    code, out, _ = command("accept", "--dry-run")
    assert code == 0
    assert "update" in out
    assert "trim" in out
    assert "nothing was written: a dry run" in out
    assert content() == before


def test_what_is_refused_is_named_and_the_others_are_stored(command: Command) -> None:
    noisy = passing(verdict(Status.UNDECIDED, headline="too noisy", workload=EAGER), name=EAGER)
    left(told(noisy, of(LINEAR)))
    code, out, _ = command("accept")
    assert code == 1
    assert f"refused: {EAGER}: device time: UNDECIDED  too noisy" in out
    assert stored() == {LINEAR}
    assert command("accept", "--force")[0] == 0
    assert stored() == {EAGER, LINEAR}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-k", "mlp and"), "-k: invalid expression"),
        (("-k", "mlp(x=1)"), "-k: invalid expression"),
        (("-k", "(" * 5_000 + "mlp" + ")" * 5_000), "-k: invalid expression"),
        (("-k", "not " * 20_000 + "mlp"), "(80003 characters)"),
        (("--group", "not-measured"), "invalid choice"),
        *(((option,), "unrecognized arguments") for option in ("--unknown", "--all", "--yes", "--workload")),
    ],
)
def test_what_is_asked_wrongly_is_trouble_and_writes_nothing(
    command: Command, arguments: tuple[str, ...], said: str
) -> None:
    left(told(of(EAGER)))
    code, out, err = command("accept", *arguments)
    assert code == 2
    assert said in err
    assert "written to" not in out
    assert not Path("baselines").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--group", "new")])
def test_an_expression_that_matches_nothing_is_named(command: Command, more: tuple[str, ...]) -> None:
    left(told(of(EAGER)))
    code, out, err = command("accept", "-k", "mpl", *more)
    assert (code, err) == (1, "")
    assert out.endswith("no workload of this review matches -k 'mpl'\n")
    assert not Path("baselines").exists()


@pytest.mark.parametrize("name", ["review", "accept"])
def test_what_is_wrong_with_a_baseline_is_told_with_where_and_what_to_do(command: Command, name: str) -> None:
    recorded(command)
    path = Path("baselines/nvidia-h200", f"{EAGER}.json")
    path.write_bytes(b'{"schema_version": 3}')
    code, out, _ = command(name)
    assert code == 1
    said = " ".join(out.split())
    assert "the baseline cannot be read: Object missing required field `suite`" in said
    assert f"; {path}; git checkout -- {path}" in said


def test_a_foreign_file_among_the_baselines_is_named_and_stops_nothing(command: Command) -> None:
    recorded(command)
    path = Path("baselines/nvidia-h200/copy of x (1).json")
    path.write_bytes(b"x")
    left(upgraded())
    code, out, err = command("accept")
    assert (code, err) == (1, "")
    assert "refused: copy of x (1): a file among the baselines is none" in out
    assert "new-x-bf16-1" in stored()
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("arguments", [("review",), ("accept", "--force")])
def test_baselines_that_cannot_be_listed_are_trouble_and_are_not_replaced(
    command: Command, arguments: tuple[str, ...]
) -> None:
    left(told(of(EAGER)))
    Path("baselines").mkdir()
    Path("baselines/nvidia-h200").write_bytes(b"not a folder")
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert "the baselines cannot be listed" in err
    assert Path("baselines/nvidia-h200").read_bytes() == b"not a folder"


def test_results_of_absurd_times_cannot_be_read(command: Command) -> None:
    folder = left(told(of(EAGER)))
    path = folder / "results.json"
    content = path.read_bytes()
    assert b"204.9" in content
    path.write_bytes(content.replace(b"204.9", b"1e50"))
    code, _, err = command("accept", "--force")
    assert code == 2
    assert "the results cannot be read" in err
    assert "durations are positive and finite, 0.001 to 1e+12 us" in err
    assert not Path("baselines").exists()


HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize("name", ["review", "accept"])
@pytest.mark.parametrize(
    ("before", "path"),
    [
        (b'"comparisons": 0', "$.comparisons"),
        (b'"iterations": 40', "$.workloads[0].run.samples.device_time.iterations"),
        (b'"peak_allocated_bytes": 1048576', "$.workloads[0].run.counts.peak_allocated_bytes"),
        (b'"memory_bytes": 150109880320', "$.fingerprint.memory_bytes"),
        (b'"neighbours": 0', "$.workloads[0].run.neighbours"),
    ],
)
def test_results_with_a_huge_integer_cannot_be_read(command: Command, name: str, before: bytes, path: str) -> None:
    recorded(command)
    folder = left(told(of(EAGER)))
    file = folder / "results.json"
    sound = file.read_bytes()
    field = before.rpartition(b" ")[0]
    file.write_bytes(sound.replace(before, field + b" " + HUGE))
    assert file.read_bytes() != sound
    kept = content()
    code, out, err = command(name)
    assert (code, out) == (2, "")
    assert "the results cannot be read" in err
    assert str(file) in err
    assert "at most 64 bits" in err
    assert path.rpartition(".")[2] in err
    assert content() == kept


# -- which folder -----------------------------------------------------------------------------------------------------


def test_review_from_a_subfolder_finds_results_and_baselines(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(command)
    Path("perf/modules").mkdir(parents=True)
    monkeypatch.chdir("perf/modules")
    code, out, err = command("review")
    assert (code, err) == (0, "")
    assert "stored   ../../baselines/nvidia-h200" in out


def test_accept_from_a_subfolder_writes_the_baselines_of_the_project(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left(told(of(EAGER)))
    Path("perf").mkdir()
    monkeypatch.chdir("perf")
    assert command("accept")[0] == 0
    assert not Path("baselines").exists()
    assert (tmp_path / "baselines" / "nvidia-h200" / f"{EAGER}.json").exists()


def test_review_looks_where_the_run_had_its_baselines(command: Command) -> None:
    left(told(of(EAGER), baselines="perf/known"))
    assert command("accept")[0] == 0
    assert Path("perf/known/nvidia-h200", f"{EAGER}.json").exists()
    assert not Path("baselines").exists()
    assert command("review")[0] == 0


def test_results_without_a_folder_belong_to_baselines(command: Command) -> None:
    folder = left(told(of(EAGER), baselines="perf/known"))
    saved = json.loads((folder / "results.json").read_bytes())
    del saved["baselines"]
    (folder / "results.json").write_text(json.dumps(saved))
    assert command("accept")[0] == 0
    assert stored() == {EAGER}


@pytest.mark.parametrize("where", ["/somewhere/else", "../elsewhere", "a/../../b", "a\0b"])
def test_baselines_outside_of_the_project_must_be_named(command: Command, tmp_path: Path, where: str) -> None:
    left(told(of(EAGER), baselines=where))
    code, out, err = command("accept")
    assert (code, out) == (2, "")
    assert "--baselines" in err
    assert command("accept", "--baselines", tmp_path / "named")[0] == 0
    assert [path.name for path in tmp_path.glob("named/*/*.json")] == [f"{EAGER}.json"]


def test_results_of_two_folders_of_baselines_are_not_mixed(command: Command) -> None:
    folders = [left(told(of(EAGER), baselines=name), name) for name in ("a", "b")]
    code, _, err = command("accept", *folders)
    assert (code, "a, b" in err) == (2, True)


def test_results_older_than_the_baselines_remove_none_of_them(command: Command) -> None:
    recorded(command)
    left(told(of(EAGER), started_at="2026-09-01T00:00:00+00:00"))
    code, out, _ = command("accept")
    assert code == 1
    assert f"refused: {GONE}: older than the baseline" in out
    assert stored() == {EAGER, COMPILED, LINEAR, GONE}


def known_gpus(workload: str) -> list[str | None]:
    baseline = BaselineStore(Path("baselines")).load(DEVICE, workload)
    assert baseline is not None
    return [process.gpu for entry in baseline.entries for process in entry.processes]


def on_another_gpu(gpu: str = ELSEWHERE, **changes: Any) -> Results:
    measured = (of(workload, gpu=gpu, **changes) for workload in (EAGER, COMPILED))
    return told(*measured, gpu=gpu)


def test_accept_add_joins_the_processes_of_another_gpu(command: Command) -> None:
    recorded(command)
    left(on_another_gpu())
    code, out, err = command("accept", "--add")
    assert (code, err) == (0, "")
    assert "2 processes" in out
    assert known_gpus(EAGER) == known_gpus(COMPILED) == [HERE, ELSEWHERE]
    assert known_gpus(LINEAR) == known_gpus(GONE) == [HERE]


def test_accept_add_creates_a_missing_baseline(command: Command) -> None:
    left(on_another_gpu())
    assert command("accept", "--add")[0] == 0
    assert known_gpus(EAGER) == [ELSEWHERE]


def test_accept_add_of_a_slower_run_is_refused_and_named(command: Command) -> None:
    recorded(command)
    before = content()
    left(told(of(EAGER, gpu=ELSEWHERE, device=SLOWER), of(COMPILED, gpu=ELSEWHERE), gpu=ELSEWHERE))
    code, out, _ = command("accept", "--add")
    assert code == 1
    assert f"refused: {EAGER}: it differs from the baseline: device time 205.1 -> 225.2 us (+9.8 %)" in out
    assert content()[EAGER] == before[EAGER]
    assert known_gpus(COMPILED) == [HERE, ELSEWHERE]


def test_accept_add_with_k_adds_only_that_one(command: Command) -> None:
    recorded(command)
    left(on_another_gpu())
    assert command("accept", "--add", "-k", EAGER)[0] == 0
    assert (known_gpus(EAGER), known_gpus(COMPILED)) == ([HERE, ELSEWHERE], [HERE])


def test_accept_add_twice_adds_once(command: Command) -> None:
    recorded(command)
    left(on_another_gpu())
    assert command("accept", "--add")[0] == 0
    before = content()
    code, out, _ = command("accept", "--add")
    assert (code, "nothing to accept" in out) == (0, True)
    assert content() == before


def test_accept_add_joins_every_run(command: Command) -> None:
    recorded(command)
    folders = [left(on_another_gpu(gpu=gpu), gpu).parent for gpu in ("one", "two")]
    assert command("accept", "--add", *map(str, folders))[0] == 0
    assert known_gpus(EAGER) == [HERE, "one", "two"]


def test_accept_add_of_a_throttled_gpu_is_refused(command: Command) -> None:
    recorded(command)
    slow = {"device": tuple(1.1 * us for us in (204.9, 205.0, 205.2, 205.3)), "controls": pair(copy=33.0, gemm=165.0)}
    left(on_another_gpu(gpu=HERE, **slow))
    code, out, _ = command("accept", "--add")
    assert code == 1
    assert "the GPU's own speed" in out
    assert known_gpus(EAGER) == [HERE]


def test_accept_add_as_a_dry_run_writes_nothing(command: Command) -> None:
    recorded(command)
    before = content()
    left(on_another_gpu())
    code, out, _ = command("accept", "--add", "--dry-run")
    assert code == 0
    assert "2 processes" in out
    assert "nothing was written: a dry run" in out
    assert content() == before


def test_under_ci_it_is_refused_unless_it_is_forced_or_dry(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    left(told(of(EAGER)))
    monkeypatch.setenv("CI", "true")
    code, out, err = command("accept")
    assert (code, out) == (2, "")
    assert "refused under CI" in err
    assert command("accept", "--dry-run")[0] == 0
    assert not Path("baselines").exists()
    assert command("review")[0] == 1  # a review writes nothing
    assert command("accept", "--force")[0] == 0
    assert stored() == {EAGER}


def test_two_kinds_of_machine_at_once(command: Command) -> None:
    other = fingerprint(device="NVIDIA B200")
    folders = [left(told(of(EAGER)), "a"), left(told(of(EAGER, machine=other), fingerprint=other), "b")]
    code, out, _ = command("accept", *folders)
    assert code == 0
    assert "NVIDIA B200: 1 workload" in out
    assert sorted(path.parent.name for path in Path("baselines").glob("*/*.json")) == ["nvidia-b200", "nvidia-h200"]


def test_accepting_twice_writes_once(command: Command) -> None:
    recorded(command)
    before = content()
    code, out, _ = command("accept")
    assert (code, content()) == (0, before)
    assert "nothing to accept" in out


# -- names, and what is imported --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_the_results_steers_the_terminal(command: Command, text: str) -> None:
    left(hostile(text, Status.REGRESSED, Status.IMPROVED))
    for arguments in (("review",), ("review", "--markdown"), ("accept", "--force")):
        code, out, err = command(*arguments)
        assert code in (0, 1), err
        assert all(line.isprintable() for line in out.split("\n"))
    assert not list(Path().glob("**/*.json")) or {path.name for path in Path().glob("**/*.json")} == {"results.json"}


def test_neither_torch_nor_pytest_is_imported_without_k(command: Command) -> None:
    left(told(of(EAGER)))
    script = (
        "import sys; from kernelgauge.cli import main; main(sys.argv[1:]);"
        "sys.exit(','.join(name for name in ('torch', 'pytest', '_pytest') if name in sys.modules) or 0)"
    )
    for arguments in (["review"], ["accept", "--dry-run"]):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
