"""`kernelgauge show` and `kernelgauge diff`, as they are typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import RECORDED, chrome, kernel, recorded_events
from tests.commands.conftest import Command

TRACES_PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
EAGER, COMPILED, OTHER = (
    str(RECORDED / f"{name}.json.gz") for name in ("mlp-eager", "mlp-compiled", "mlp-compiled-other-autotune")
)


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "100")
    return kernelgauge


def test_show_says_what_ran_who_launched_it_and_how_near_it_came_to_the_limit(command: Command) -> None:
    code, out, _ = command("show", COMPILED)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "mlp-compiled.json.gz  NVIDIA H200, 3 steps"
    assert lines[1] == "4 kernels per step, 205.1 us: 3 GEMMs, 1 pointwise kernel"
    assert lines[2].startswith("GPU busy 206.7 of 219.5 us (94 %), idle 12.8 us")
    assert lines[3].startswith("compute-bound: the GPU waited for launches 2.9 % of the time")
    assert "gemm by aten::mm [8192,768] [768,3072]" in out
    assert "686 TFLOP/s" in out
    assert "grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4 num_stages=1" in out
    assert "Memset (Device): 2 times" in out
    assert "pre-ops of torch.compile: TorchDynamo Cache Lookup" in out


def test_show_names_the_ops_that_launched_nothing(command: Command) -> None:
    _, out, _ = command("show", EAGER)
    assert "launched nothing (metadata only): aten::t x3" in out


def test_show_of_one_step_is_of_that_step(command: Command) -> None:
    _, out, _ = command("show", EAGER, "--step", "3", "--json")
    said = json.loads(out)
    assert (said["steps"], len(said["step"]["kernels"])) == (1, 5)
    assert all(len(each["durations_us"]) == 1 for each in said["step"]["kernels"])


def test_a_step_that_is_not_there_is_named_with_those_that_are(command: Command) -> None:
    code, out, err = command("show", EAGER, "--step", "77")
    assert (code, out) == (2, "")
    assert "there is no ProfilerStep#77" in err
    assert "ProfilerStep#2, ProfilerStep#3, ProfilerStep#4" in err


def test_show_of_the_whole_trace_counts_every_launch(command: Command) -> None:
    _, out, _ = command("show", EAGER, "--whole")
    assert out.splitlines()[1].startswith("15 kernels, 701.8 us")


def test_as_json_the_kernels_of_the_whole_trace_are_summed_up_under_their_whole_names(command: Command) -> None:
    _, out, _ = command("show", EAGER, "--json")
    said: dict[str, Any] = json.loads(out)
    rows = [row for row in recorded_events("mlp-eager") if row["cat"] == "kernel"]
    assert sum(each["launches"] for each in said["kernels"]) == len(rows)
    assert sum(each["device_time_us"] for each in said["kernels"]) == pytest.approx(sum(row["dur"] for row in rows))
    assert {each["name"] for each in said["kernels"]} == {row["name"] for row in rows}
    assert said["step"]["groups"][0]["flops"] == 2 * (2 * 8192 * 768 * 3072)


def test_few_rows_are_shown_where_few_are_asked_for(command: Command) -> None:
    _, out, _ = command("show", str(RECORDED / "mlp-eager-train.json.gz"), "--top", "2")
    assert "the 2 longest of" in out
    assert out.count("nvjet") == 2
    _, everything, _ = command("show", str(RECORDED / "mlp-eager-train.json.gz"), "--top", "0")
    assert "longest of" not in everything
    assert everything.count("nvjet") > 7


def test_diff_concludes_in_one_sentence_and_tells_the_kernels(command: Command) -> None:
    code, out, _ = command("diff", EAGER, COMPILED)
    assert code == 0
    assert "compile fused 2 pointwise kernels into 1 and left the 3 GEMMs untouched" in out
    assert "-> triton_poi_fused__unsafe_view_gelu_mul_0" in out
    assert "gone     aten::linear x3, aten::t x3" in out


@pytest.mark.parametrize(("after", "code"), [(OTHER, 1), (COMPILED, 0)])
def test_diff_fails_on_a_change_if_asked_to(command: Command, after: str, code: int) -> None:
    assert command("diff", COMPILED, after, "--fail-on-change")[0] == code
    assert command("diff", COMPILED, after)[0] == 0


def test_diff_as_json_sums_up(command: Command) -> None:
    _, out, _ = command("diff", COMPILED, OTHER, "--json")
    said = json.loads(out)
    total = said["after"]["device_time_us"] - said["before"]["device_time_us"]
    assert sum(each["delta_us"] for each in said["differences"]) == pytest.approx(total)
    assert said["changed"] is True
    assert "autotuner chose another launch configuration" in said["conclusion"]


def test_diff_as_markdown_is_a_table(command: Command) -> None:
    _, out, _ = command("diff", EAGER, COMPILED, "--markdown")
    assert "| what | kernels | before us | after us | change us | of the total |" in out


def test_a_trace_that_cannot_be_read_is_trouble_and_no_answer(command: Command, tmp_path: Path) -> None:
    code, out, err = command("diff", EAGER, str(tmp_path / "absent.json"), "--fail-on-change")
    assert (code, out) == (2, "")
    assert str(tmp_path / "absent.json") in err


def test_an_option_that_does_not_exist_is_refused(command: Command) -> None:
    code, _, err = command("show", EAGER, "--setp", "3")
    assert code == 2
    assert "unrecognized arguments: --setp 3" in err


def test_kernels_without_a_launch_are_shown_and_told(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "orphans.json"
    trace.write_bytes(chrome(kernel(1, 0, name="evil\x1b[31m"), kernel(2, 10)))
    _, out, _ = command("show", str(trace))
    assert "orphan: evil\\x1b[31m (correlation 1) has no launch" in out
    assert "2 kernels, 10.0 us" in out


def test_a_change_that_nobody_can_see_is_trouble(command: Command, tmp_path: Path) -> None:
    lost = tmp_path / "lost.json"
    rows = [row for row in recorded_events("mlp-eager") if row["cat"] != "kernel"]
    lost.write_bytes(chrome(*rows))
    assert command("diff", str(lost), str(lost), "--fail-on-change")[0] == 2
    _, out, _ = command("show", str(lost))
    assert "launches that left no record: 15;" in out


def test_of_fewer_rows_than_kernels_the_longest_are_shown(command: Command) -> None:
    _, out, _ = command("show", COMPILED, "--top", "2")
    assert "the 2 longest of 3" in out


def test_a_name_that_the_terminal_cannot_write_is_escaped(tmp_path: Path) -> None:
    trace = tmp_path / "names.json"
    trace.write_bytes(chrome(kernel(1, 0, name="k\u00e9rnel")))
    done = subprocess.run(
        [sys.executable, "-m", "kernelgauge", "show", str(trace)],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0
    assert b"k\\xe9rnel" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_trouble_in_one_line() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m kernelgauge show {COMPILED} > /dev/full"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("system error: ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "block", re.findall(r"```text\n\$ kernelgauge (.*?)\n(.*?)```", TRACES_PAGE, re.DOTALL), ids=lambda block: block[0]
)
def test_the_documentation_shows_what_the_commands_say(
    command: Command, monkeypatch: pytest.MonkeyPatch, block: tuple[str, str]
) -> None:
    monkeypatch.chdir(RECORDED)
    arguments, shown = block
    assert command(*arguments.split())[1].rstrip() == shown.rstrip()


def test_the_documentation_has_examples() -> None:
    assert TRACES_PAGE.count("$ kernelgauge ") == 3


def test_whoever_reads_may_stop_reading() -> None:
    script = f"{sys.executable} -m kernelgauge show {COMPILED} --json | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_neither_torch_nor_pytest_is_imported_to_read_a_trace() -> None:
    script = (
        "import sys; from kernelgauge.cli import main; main(['show', sys.argv[1]]);"
        "sys.exit(','.join(name for name in ('torch', 'pytest', 'scipy') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, COMPILED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
