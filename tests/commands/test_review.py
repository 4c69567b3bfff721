"""`kernelgauge review` and `kernelgauge accept`, as they are typed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filelock import FileLock, Timeout

from kernelgauge.baselines import BaselineStore
from kernelgauge.judge import Status
from kernelgauge.results import (
    Results,
    digest_of_file,
    encode_results,
    nearest_tag,
    revision,
)
from kernelgauge.trace.kernel import Resources
from tests import builders
from tests.builders import complete_results, counts, fingerprint, mlp_kernels, passing, run, verdict
from tests.commands.conftest import Command, Process, commit_all, git

OTHER_GEMM = "nvjet_sm90_tst_128x160_64x5_4x1_v_bz_NTT"
SLOWER = (225.0, 225.1, 225.2, 225.3)
EAGER, COMPILED, LINEAR, GONE = (
    "mlp-eager-bf16-4x8",
    "mlp-compiled-bf16-4x8",
    "linear-eager-bf16-4x8",
    "old-x-bf16-1",
)


def left(content: Results, folder: str = "reports/latest") -> Path:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.json").write_bytes(encode_results(content))
    return path


def stored() -> set[str]:
    return set(BaselineStore(Path("baselines")).stored(builders.DEVICE))


def content() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in Path("baselines").glob("*/*.json")}


def of(workload: str, **changes: Any) -> Any:
    return passing(name=workload, run=run(workload=workload, **changes))


def recorded(command: Command) -> None:
    """Four baselines: of three workloads, and of one that is declared no more."""
    left(
        complete_results(
            *map(of, (EAGER, COMPILED, LINEAR, GONE)), started_at="2026-11-01T00:00:00+00:00"
        )
    )
    assert (command("accept")[0], stored()) == (0, {EAGER, COMPILED, LINEAR, GONE})


def upgraded() -> Results:
    """After an upgrade: one the same, one slower, one with other kernels; one new, one gone."""
    machine = fingerprint(driver="590.1")
    regressed = verdict(Status.REGRESSED, workload=COMPILED)
    return complete_results(
        of(EAGER, machine=machine),
        passing(
            regressed, name=COMPILED, run=run(workload=COMPILED, machine=machine, device=SLOWER)
        ),
        of(
            LINEAR, machine=machine, kernels=mlp_kernels()[:3], counts=counts(launches=3, kernels=2)
        ),
        of("new-x-bf16-1", machine=machine),
        fingerprint=machine,
    )


def test_review_after_an_upgrade_shows_every_group(command: Command) -> None:
    recorded(command)
    left(upgraded())
    before = content()
    code, out, _ = command("review")
    moved = "moved    driver 580.159.04 -> 590.1   (3 workloads)"
    titles = (
        "no other speed: 1",
        "slower or faster: 1",
        "other counts: 1",
        "new: 1",
        "vanished: 1",
    )
    assert all(each in out for each in (moved, *titles))
    assert (code, content()) == (1, before)
    # equal results count once
    page = command("review", "--markdown", "reports/latest", "reports/latest")[1]
    assert re.match(
        r"(?s)```text\nresults  reports/latest/results\.json .*\n\nNVIDIA H200: 5 workloads\n", page
    )


def test_review_of_forty_workloads_has_a_line_for_each_group_of_kernels(command: Command) -> None:
    def kernel(number: int, registers: int, spilled_words: int = 0) -> Any:
        fused = builders.fused(38.1)
        identity = msgspec.structs.replace(fused.identity, name=f"kernel_{number}")
        return msgspec.structs.replace(
            fused, identity=identity, resources=Resources(registers, 0, spilled_words)
        )

    one, machine, numbers = counts(launches=1, kernels=1), fingerprint(triton="3.7.0"), range(40)
    library, gemm = ((builders.launched(name, 53.0),) for name in (builders.DOWN, OTHER_GEMM))
    before = [of(f"norm-{n}", kernels=(kernel(n % 20, 37),), counts=one) for n in numbers]
    left(complete_results(*before, of(LINEAR, kernels=library, counts=one)))
    assert command("accept")[0] == 0
    # of one occupancy
    after = {17: (38,), 18: (40,), 19: (40, 9), **{n: (33 + (n - 10) // 2,) for n in range(10, 17)}}
    kernels = {n: (kernel(n % 20, *after.get(n % 20, (37,))),) for n in numbers}
    runs = (of(f"norm-{n}", kernels=kernels[n], counts=one, machine=machine) for n in numbers)
    linear = of(LINEAR, kernels=gemm, counts=one, machine=machine)
    left(complete_results(*runs, linear, fingerprint=machine))
    lines = (out := command("review")[1]).splitlines()
    assert re.search(r"\n    +registers 37 -> 40, spilled words 0 -> 9", out)
    assert "other library kernel: 1 kernel in 1 workload" in lines
    assert f"{builders.DOWN} ({LINEAR}) gemm {builders.DOWN} -> {OTHER_GEMM}" in " ".join(
        out.split()
    )
    assert "other spilled words: 1 kernel (1 up) in 2 workloads" in lines
    assert "other registers: 9 kernels (2 up, 7 down) in 18 workloads" in lines
    assert "  and 5 more: kernelgauge accept --dry-run shows all" in lines
    # to 33, to 34
    largest, smaller = (lines.index(f"  kernel_{n}   (norm-{n}, norm-{n + 20})") for n in (10, 12))
    assert largest < smaller
    assert "  and 30 more" in lines  # of the same speed
    assert len(lines) < 65
    everything = " ".join(command("accept", "--dry-run")[1].split())
    assert all(f"kernel_{n}: registers 37 -> {after[n][0]}" in everything for n in range(10, 19))


def test_accept_stores_the_selected_only(command: Command) -> None:
    recorded(command)
    left(upgraded())
    new = {"new-x-bf16-1"}
    for expression, changed in (
        ("mlp and not EAGER", {COMPILED}),
        ("(linear or new) and bf16", {LINEAR} | new),
        ("", {EAGER}),
    ):
        before = content()
        (killed := next(Path("baselines").glob("*/*.json")).with_name(".x.json.1.tmp")).touch()
        code, out, _ = command("accept", "-k", expression)
        assert (code, killed.exists()) == (0, False)
        assert {name for name, text in content().items() if before.get(name) != text} == changed
        assert f"{len(changed)} written to baselines" in out


OPS = """
import pytest

@pytest.mark.parametrize("n", [4, 16])
def test_mlp(kernelgauge, n): ...

def test_ml(kernelgauge): ...
"""
# workload -> test
NODES = {
    "test_m-test_mlp-4": "test_m.py::test_mlp[4]",
    "test_m-test_mlp-16": "test_m.py::test_mlp[16]",
    "test_m-test_ml": "test_m.py::test_ml",
}


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("test_mlp[4]", 1),
        ("test_mlp-4", 1),
        ("[test_m-test_ml]", 1),
        ("test_m-test_ml", 3),
        ("[test_m-test_ml] or mlp[16]", 2),
        ("mlp[", 2),
        ("test_m.py and not [4", 2),
        ("mlp-[4]", 0),
    ],
    ids=["test", "id", "one id", "part", "or", "bracket", "not", "none"],
)
def test_expression_of_accept_and_history_is_that_of_pytest(
    command: Command, pytester: pytest.Pytester, expression: str, count: int
) -> None:
    pytester.makepyfile(test_m=OPS)
    asked = ("--collect-only", "-q", "-k", expression)
    collected = set(pytester.runpytest_inprocess(*asked).outlines) & {*NODES.values()}
    assert len(collected) == count
    tests = [builders.one_test("", workload=it, node=node) for it, node in NODES.items()]
    folder = str(left(complete_results(*map(of, NODES), tests=tests)))
    out = command("accept", "--dry-run", "-k", expression)[1]
    of_history = command("history", folder, "-k", expression)[1]
    wanted = {it for it, node in NODES.items() if node in collected}
    assert {each.split()[1] for each in out.splitlines() if each.startswith("create")} == wanted
    assert set(re.findall(r"(?m)^workload (\S+)", of_history)) == wanted


def test_accept_names_the_refused_and_stores_the_others(command: Command) -> None:
    noisy = passing(verdict(Status.INVALID, headline="too noisy", workload=EAGER), name=EAGER)
    left(complete_results(noisy, of(LINEAR)))
    code, out, _ = command("accept")
    assert (code, stored()) == (1, {LINEAR})
    assert re.search(
        f"(?s)refused: {EAGER}: GPU time: INVALID  too noisy.*to measure it again", out
    )
    assert (command("accept", "--force")[0], stored()) == (0, {EAGER, LINEAR})


def test_accept_of_wrong_arguments_writes_nothing(command: Command) -> None:
    left(complete_results(of(EAGER)))
    wrong = "-k: invalid expression"
    for expression, expected, said in (
        ("mlp and", 2, wrong),
        ("mlp(x=1)", 2, wrong),
        ("mpl", 1, "matches -k 'mpl'\n"),
    ):
        code, out, err = command("accept", "-k", expression)
        assert (code, said in out + err, stored()) == (expected, True, set())


@pytest.mark.parametrize("arguments", ["accept", "calibrate perf --processes 2"])
def test_storing_under_ci_needs_force(
    command: Command, process: Process, monkeypatch: Any, arguments: str
) -> None:
    left(complete_results(of(COMPILED)))
    monkeypatch.setenv("CI", "true")
    name, *others = arguments.split()
    code, out, err = command(name, *others)
    assert (code, out, process.seen) == (2, "", [])
    assert re.search(f"(?s)refused under CI.*kernelgauge {name} --force", err)
    code, out, _ = command(name, *others, "--dry-run")
    assert (code, "nothing was written: a dry run" in out) == (0, True)
    assert command("review")[0] == 1  # a review writes nothing
    assert not Path("baselines").exists()
    assert (command(name, *others, "--force")[0], stored()) == (0, {COMPILED})


def test_accept_writes_through_no_link_out_of_the_project(
    command: Command, tmp_path_factory: Any
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "mine.json"
    outside.write_text('{"mine": 1}')
    left(complete_results(of(EAGER)))
    link = Path("baselines/nvidia-h200", f"{EAGER}.json")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert command("accept")[0] == 1
    code, _, err = command("accept", "--force")
    assert (code, outside.read_text()) == (2, '{"mine": 1}')
    assert re.search(
        rf"cannot write\n  where    {link}\n  got      a link to {outside}, which is outside of",
        err,
    )


def test_accept_shows_and_writes_under_one_lock(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BaselineStore.stored

    def reading(store: BaselineStore, device: str) -> Any:
        with pytest.raises(Timeout):
            FileLock(store.root / ".lock" / "update").acquire(timeout=0)
        return real(store, device)

    left(complete_results(of(EAGER)))
    with monkeypatch.context() as patch:
        patch.setattr(BaselineStore, "stored", reading)
        assert command("accept")[0] == 0
    assert stored() == {EAGER}


def test_commands_in_a_subfolder_find_the_project(
    command: Command, monkeypatch: Any, tmp_path: Path
) -> None:
    left(complete_results(of(EAGER)))
    Path("perf/modules").mkdir(parents=True)
    monkeypatch.chdir("perf/modules")
    assert command("accept")[0] == 0
    assert [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob(f"{EAGER}.json")] == [
        "baselines"
    ]
    code, out, err = command("review")
    assert (code, err, "stored   ../../baselines\n" in out) == (0, "", True)


@pytest.mark.parametrize("places", [("/somewhere/else",), ("a/../../b",), ("a\0b",), ("a", "b")])
def test_other_baselines_must_be_named(
    command: Command, tmp_path: Path, places: tuple[str, ...]
) -> None:
    folders = [
        left(complete_results(of(EAGER), baselines=place), f"run {at}")
        for at, place in enumerate(places)
    ]
    code, out, err = command("accept", *folders)
    assert (code, out, "--baselines" in err) == (2, "", True)
    for name in ("accept", "review"):
        assert command(name, *folders, "--baselines", tmp_path / "named")[0] == 0
    assert [path.name for path in tmp_path.glob("named/*/*.json")] == [f"{EAGER}.json"]


def known_gpus(workload: str) -> list[str | None]:
    baseline = BaselineStore(Path("baselines")).load(builders.DEVICE, workload)
    return (
        [process.gpu for entry in baseline.entries for process in entry.processes]
        if baseline
        else []
    )


def test_accept_add_joins_processes_once(command: Command) -> None:
    recorded(command)
    gpus = ["one", "two"]
    folders = [
        left(complete_results(of(EAGER, gpu=gpu), of(COMPILED, gpu=gpu), gpu=gpu), gpu)
        for gpu in gpus
    ]
    code, out, err = command("accept", "--add", *folders)
    assert (code, err, "3 processes" in out) == (0, "", True)
    assert known_gpus(EAGER) == known_gpus(COMPILED) == [builders.HERE, *gpus]
    assert known_gpus(LINEAR) == known_gpus(GONE) == [builders.HERE]
    before = content()
    code, out, _ = command("accept", "--add", *folders)
    assert (code, "0 written to baselines" in out, content() == before) == (0, True, True)


def test_accept_ends_with_creep(command: Command) -> None:
    recorded(command)
    for day in (1, 2, 3):
        observed = of(EAGER, machine=fingerprint(driver=f"590.{day}"), device=(205.0 + day,) * 4)
        started = {"started_at": f"2026-11-1{day}T00:00:00+00:00", "release": "v2"}
        left(complete_results(observed, fingerprint=observed.run.fingerprint, **started))
        out = command("accept")[1]
    assert out.endswith(
        f"\ncreep: {EAGER}: GPU time +1.4 % since v2 (2026-11-01), in 3 accepted steps\n"
    )


def test_revision_of_changed_tree_has_a_plus(repository: Path) -> None:
    git("commit", "--allow-empty", "-qm", "None")
    assert nearest_tag(repository) is None
    git("tag", "v1.2")
    (repository / "measured.py").write_text("1\n")
    commit = commit_all("One")
    (repository / "not_tracked.py").write_text("2\n")
    assert revision(repository) == commit
    (repository / "measured.py").write_text("3\n")
    assert (revision(repository), nearest_tag(repository)) == (f"{commit}+", "v1.2")
    (repository / ".git" / "index").write_bytes(b"no index")
    assert revision(repository) is None


def test_accept_keeps_its_reason_for_review(command: Command) -> None:
    recorded(command)
    left(upgraded())
    assert "    because  " not in command("review")[1]
    assert command("accept", "-k", COMPILED, "--because", "driver 590\x1b is slower")[0] == 0
    (line,) = (each for each in command("review")[1].splitlines() if "    because  " in each)
    assert re.fullmatch(r" +because +driver 590\\x1b is slower", line)
    assert command("accept", "-k", COMPILED)[0] == 0  # the same run: the file stays
    assert "    because  " in command("review")[1]
    before = content()
    code, out, _ = command("accept", "-k", COMPILED, "--because", "the driver")
    assert (code, "1 written" in out) == (0, True), out
    assert re.search(r" because +the driver\n", command("review")[1])
    changed = {name for name, file in content().items() if file != before[name]}
    assert changed == {COMPILED}
    again = content()[COMPILED].replace(b"the driver", b"driver 590\\u001b is slower")
    assert json.loads(again) == json.loads(before[COMPILED])  # and nothing but the reason
    left(
        complete_results(
            of(COMPILED, gpu="two", machine=fingerprint(driver="590.1"), device=SLOWER), gpu="two"
        )
    )
    code, out, err = command("accept", "--add", "-k", COMPILED)
    assert (code, "2 processes" in out) == (0, True), (out, err)
    assert "    because  " in command("review")[1]  # more runs of what was accepted
    left(complete_results(of(COMPILED)))
    assert command("accept", "-k", COMPILED)[0] == 0
    assert "    because  " not in command("review")[1]


def test_accept_prints_the_command_that_keeps_a_reason(command: Command) -> None:
    recorded(command)
    folder = str(left(upgraded(), "nights/new run"))
    accept = "kernelgauge accept 'nights/new run'"
    offered = f"\nto accept it: {accept} --because TEXT\nto accept a part: {accept} -k {COMPILED} "
    assert offered in command("review", folder)[1]
    out = command("accept", folder, "-k", COMPILED)[1]
    (line,) = (each for each in out.splitlines() if each.startswith("to keep why: "))
    words = shlex.split(line.partition(": ")[2].replace("TEXT", "driver"))
    assert command(*words[1:])[0] == 0
    assert re.search(r" because +driver\n", command("review", folder)[1])


def slower_and_new() -> Results:
    """Two workloads that stay as they are, one that is slower, and a new one."""
    regressed = verdict(Status.REGRESSED, workload=COMPILED)
    slower = passing(regressed, name=COMPILED, run=run(workload=COMPILED, device=SLOWER))
    return complete_results(of(EAGER), of(LINEAR), slower, of("new-x-bf16-1"))


def test_reason_goes_to_what_changes_or_is_selected(command: Command) -> None:
    recorded(command)
    before = content()
    left(slower_and_new())
    assert "reason was" not in command("accept", "--because", "driver 590")[1]
    changed = {name for name, file in content().items() if b"driver 590" in file}
    assert changed == {COMPILED, "new-x-bf16-1"}
    assert changed == {name for name, file in content().items() if file != before.get(name)}
    before = content()
    assert "the reason was kept nowhere: " in command("accept", "--because", "again")[1]
    assert content() == before
    assert "1 written" in command("accept", "-k", EAGER, "--because", "again")[1]
    assert {name for name, file in content().items() if b"again" in file} == {EAGER}


def test_accept_of_all_names_what_gets_a_reason(command: Command) -> None:
    recorded(command)
    left(slower_and_new())
    before = content()
    out = command("accept")[1]
    (line,) = (each for each in out.splitlines() if each.startswith("to keep why: "))
    changed = {name for name, file in content().items() if file != before.get(name)}
    words = shlex.split(line.partition(": ")[2].replace("TEXT", "slower-driver"))
    assert command(*words[1:])[0] == 0
    assert {name for name, file in content().items() if b"slower-driver" in file} == changed


def test_command_that_keeps_a_reason_selects_what_was_written(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, big = "test_m-mlp", "test_m-mlp_big"
    left(complete_results(of(small), of(big)))
    assert command("accept")[0] == 0
    before = content()
    left(complete_results(of(small, device=SLOWER), of(big)))
    monkeypatch.setenv("CI", "true")  # needs --force each time
    out = command("accept", "--force", "-k", "mlp")[1]
    (line,) = (each for each in out.splitlines() if each.startswith("to keep why: "))
    code, out, _ = command(*shlex.split(line.partition(": ")[2])[1:])
    assert (code, "1 written" in out) == (0, True), out
    assert {name for name, file in content().items() if b'"TEXT"' in file} == {small}
    assert content()[big] == before[big]


NOT_IN_FULL = "it was not measured in full (no test of a time was selected)"


def test_refusal_of_several_workloads_is_said_once(command: Command) -> None:
    recorded(command)
    next(Path("baselines").glob(f"*/{GONE}.json")).unlink()
    untimed = {"samples": {}, "incomplete": "no test of a time was selected"}
    left(complete_results(of(EAGER, **untimed), of(COMPILED, **untimed), of(LINEAR)))
    for arguments in (["review"], ["accept", "--dry-run"]):
        code, out, _ = command(*arguments)
        said = " ".join(out.split())
        assert (code, said.count(NOT_IN_FULL)) == (1, 1), out
        assert f"{COMPILED}, {EAGER}" in said
        assert f"quiet machine: pytest perf -k '{COMPILED} or {EAGER}'" in said
    assert "to accept it" not in command("review")[1]  # nothing waits for that


def test_accept_names_files_that_changed_since_the_run(command: Command) -> None:
    recorded(command)
    Path("model.py").write_text("x = 1\n")
    sources = {"model.py": digest_of_file(Path("model.py")), "gone.py": "0123456789abcdef"}
    for files, named in ((["model.py"], ""), (list(sources), "gone.py")):
        known = {name: sources[name] for name in files}
        left(msgspec.structs.replace(complete_results(of(COMPILED)), sources=known))
        out = command("review")[1]
        assert re.findall(r"(?m)^changed +(\S.*?)   \(since", out) == [named] * bool(named)
    Path("model.py").write_text("x = 2\n")
    assert re.search(r"(?m)^changed +model.py, gone.py   \(since", command("accept")[1])


@pytest.mark.parametrize("arch", ["sm_90", "cpu"])
def test_accept_writes_kernels_that_changed_alone(command: Command, arch: str) -> None:
    def store(**times: float) -> list[str]:
        more = (builders.launched("add", 9.0, kind="pointwise"),) if times else ()
        fields = {"kernels": (*mlp_kernels(**times), *more), "machine": fingerprint(arch=arch)}
        left(complete_results(of(EAGER, **fields, counts=counts(launches=4 + len(more)))))
        assert command("accept", "--force")[0] == 0
        return [it.rstrip(",") for it in content()[EAGER].decode().splitlines() if "identity" in it]

    before = store()
    after = store(gate=56.4, up=57.6, us=38.0, down=56.0)  # and one more: down alone moved by 1 %
    changed = [each for each in after if each not in before]
    assert ["add" in changed[-1], len(changed)] == [True, 1 if arch == "cpu" else 2]
    assert ('"device_time_us": 56.0' in changed[0]) == (arch != "cpu")


def test_review_says_a_cause_once(command: Command) -> None:
    recorded(command)
    fewer = {"kernels": mlp_kernels()[:3], "counts": counts(launches=3, kernels=2)}
    left(complete_results(*(of(each, **fewer) for each in (EAGER, COMPILED, LINEAR))))
    out = command("review")[1]
    assert out.count("1 kernel gone") == 1
    assert out.count("launches 4 -> 3, distinct kernels 3 -> 2") == 3
    assert re.findall(r"cause +as in (\S+)", out) == [LINEAR] * 2
