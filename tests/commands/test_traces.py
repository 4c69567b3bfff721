"""`kernelgauge show` and `kernelgauge diff`, as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.builders import RECORDED, chrome, kernel, op, recorded_events
from tests.commands.conftest import Command, imported_modules, shell

TRACES_PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```text\n\$ kernelgauge (.*?)\n(.*?)```", TRACES_PAGE, re.DOTALL)
EAGER, TRAIN, COMPILED, OTHER = (
    str(RECORDED / f"{name}.json.gz")
    for name in ("mlp-eager", "mlp-eager-train", "mlp-compiled", "mlp-compiled-other-autotune")
)


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "100")
    return kernelgauge


def test_show_explains_a_trace(command: Command) -> None:
    code, out, _ = command("show", COMPILED)
    assert (code, out.splitlines()[:2]) == (
        0,
        ["mlp-compiled.json.gz  NVIDIA H200, 3 steps", "Step: 347.0 us, mean of 3 (226.7 us to 437.6 us)."],
    )
    for text in (
        "GPU busy 206.7 us (60 %): 205.1 us compute, 1.6 us copies alone.",
        "GPU idle 140.3 us (40 %): 108.7 us waiting for launches, 23.2 us between steps (input)",
        "Overhead-bound: the GPU waits for launches in 31 % of the step.",
        "4 kernels, 205.1 us: gemm 167.7 us (82 %), pointwise 37.4 us (18 %).",
        "gemm by aten::mm [8192,768] [768,3072]",
        "686 TFLOP/s",
        "grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4 num_stages=1",
        "Memset (Device): 2 times",
        "pre-ops of torch.compile: TorchDynamo Cache Lookup",
    ):
        assert text in out


def test_show_selects_a_step_or_the_whole_trace(command: Command) -> None:
    one = json.loads(command("show", EAGER, "--step", "3", "--json")[1])
    assert (one["steps"], [len(each["durations_us"]) for each in one["step"]["kernels"]]) == (1, [1] * 5)
    assert command("show", EAGER, "--whole")[1].count("15 kernels, 701.8 us")
    code, out, err = command("show", EAGER, "--step", "77")
    assert (code, out, "there is no ProfilerStep#77" in err) == (2, "", True)
    assert "ProfilerStep#2, ProfilerStep#3, ProfilerStep#4" in err


def test_show_json_sums_up_kernels(command: Command) -> None:
    data = json.loads(command("show", EAGER, "--json")[1])
    rows = [row for row in recorded_events("mlp-eager") if row["cat"] == "kernel"]
    assert sum(each["launches"] for each in data["kernels"]) == len(rows)
    assert sum(each["device_time_us"] for each in data["kernels"]) == pytest.approx(sum(row["dur"] for row in rows))
    assert {each["name"] for each in data["kernels"]} == {row["name"] for row in rows}
    assert data["step"]["groups"][0]["flops"] == 2 * (2 * 8192 * 768 * 3072)


@pytest.mark.parametrize(("top", "title", "most"), [("2", "2 of 12 rows. The others take", 2), ("0", None, 100)])
def test_show_top_limits_rows(command: Command, top: str, title: str | None, most: int) -> None:
    out = command("show", TRAIN, "--top", top)[1]
    assert title in out if title else "The others take" not in out
    assert min(most, 5) <= out.count("nvjet") <= most


def test_show_names_are_whole_on_a_narrow_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for words in (["show", COMPILED], ["diff", EAGER, COMPILED]):
        assert "triton_poi_fused__unsafe_view_gelu_mul_0\n" in command(*words)[1]


@pytest.mark.parametrize(
    ("by", "titles"),
    [
        ("name", ["nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "triton_poi_fused__unsafe_view_gelu_mul_0"]),
        ("op", ["aten::mm", "triton_poi_fused__unsafe_view_gelu_mul_0"]),
    ],
)
def test_show_groups_by_name_and_op(command: Command, by: str, titles: list[str]) -> None:
    data = json.loads(command("show", COMPILED, "--by", by, "--sort", "name", "--json")[1])
    found = [group["title"] for group in data["step"]["groups"]]
    assert found == sorted(found)
    assert set(titles) <= set(found)
    out = command("show", COMPILED, "--by", by)[1]
    assert all(title in out for title in titles)


def test_show_of_a_cpu_has_no_empty_lines(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "cpu.json"
    trace.write_bytes(chrome(op("aten::mm", 1, 5)))
    out = command("show", trace)[1]
    assert "1 computing op, 5.0 us: gemm 5.0 us (100 %)." in out
    assert "aten::mm\n      gemm\n\nhost" in out


def test_show_by_module_without_modules_is_refused(command: Command) -> None:
    code, out, err = command("show", COMPILED, "--by", "module")
    assert (code, out) == (2, "")
    assert "with_stack=True" in err
    assert f"kernelgauge show {COMPILED} --by op" in err


def test_show_groups_what_does_not_pair(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "orphans.json"
    trace.write_bytes(chrome(*(kernel(at, 10 * at) for at in range(9))))
    out = command("show", trace)[1]
    assert out.index("9 times orphan: gemm has no launch") > out.index("of the limit")


def test_diff_concludes_in_one_sentence(command: Command) -> None:
    code, out, _ = command("diff", EAGER, COMPILED)
    assert (code, "gone  aten::linear x3, aten::t x3" in out) == (0, True)
    assert "Compile fused 2 pointwise kernels into 1 and left the 3 GEMMs untouched" in " ".join(out.split())
    assert "-> triton_poi_fused__unsafe_view_gelu_mul_0" in out
    table = command("diff", EAGER, COMPILED, "--markdown")[1]
    assert "| what | before | after | change | of the total | kernel |" in table
    assert "| 37.4 us | \\-29.8 us | \\-12.7 % | vectorized_elementwise_kernel&lt;gelu>" in table


def test_diff_json_sums_up_differences(command: Command) -> None:
    data = json.loads(command("diff", COMPILED, OTHER, "--json")[1])
    total = data["after"]["device_time_us"] - data["before"]["device_time_us"]
    assert sum(each["delta_us"] for each in data["differences"]) == pytest.approx(total)
    assert (data["changed"], "autotuner chose another launch configuration" in data["conclusion"]) == (True, True)


@pytest.fixture
def lost(tmp_path: Path) -> str:
    """A trace whose launches have no kernels."""
    path = tmp_path / "lost.json"
    path.write_bytes(chrome(*(row for row in recorded_events("mlp-eager") if row["cat"] != "kernel")))
    return str(path)


def test_diff_fail_on_change_fails_closed(command: Command, tmp_path: Path, lost: str) -> None:
    assert [command("diff", COMPILED, after, "--fail-on-change")[0] for after in (OTHER, COMPILED)] == [1, 0]
    assert [command("diff", COMPILED, after)[0] for after in (OTHER, COMPILED)] == [0, 0]
    assert command("diff", lost, lost, "--fail-on-change")[0] == 2
    assert "The profiler lost the kernels of 15 launch calls." in command("show", lost)[1]
    code, out, err = command("diff", EAGER, tmp_path / "absent.json", "--fail-on-change")
    assert (code, out, str(tmp_path / "absent.json") in err) == (2, "", True)


def test_orphan_kernels_are_shown_and_escaped(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "orphans.json"
    trace.write_bytes(chrome(kernel(1, 0, name="\u00e9vil\x1b[31m"), kernel(2, 10)))
    out = command("show", trace)[1]
    assert "orphan: \u00e9vil\\x1b[31m has no launch" in out
    assert "2 kernels, 10.0 us: other 5.0 us (50 %), gemm 5.0 us (50 %)." in out
    assert "\\xe9vil" in shell('$KG show "$1"', trace, PYTHONIOENCODING="ascii").stdout


@pytest.mark.parametrize("option", [["--setp", "3"], ["--json", "--open"], ["--step", "1", "--whole"]])
def test_wrong_usage_is_trouble(command: Command, option: list[str]) -> None:
    code, out, err = command("show", EAGER, *option)
    assert (code, out, option[0] in err) == (2, "", True)


@pytest.mark.parametrize(
    ("script", "code", "out", "err"),
    [
        ("$KG show $1 > /dev/full", 2, "", "system error: [Errno 28] No space left on device\n"),
        ("$KG show $1 --json | head -1", 0, "{\n", ""),
    ],
)
def test_output_that_ends_early_is_no_traceback(script: str, code: int, out: str, err: str) -> None:
    done = shell(script, COMPILED)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_documentation_shows_what_commands_print(
    command: Command, monkeypatch: pytest.MonkeyPatch, example: tuple[str, str]
) -> None:
    monkeypatch.chdir(RECORDED)
    assert len(EXAMPLES) == 3
    assert command(*example[0].split())[1].rstrip() == example[1].rstrip()


def test_show_imports_neither_torch_nor_pytest() -> None:
    assert not imported_modules("show", COMPILED) & {"torch", "pytest", "scipy"}
