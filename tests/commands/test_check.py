"""`kernelgauge check-trace`, as it is typed, on recorded traces, and on traces that are made here: no GPU
wrote them.
"""

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelgauge import KernelgaugeError, baselines, check_trace
from tests.builders import (
    RECORDED,
    Event,
    call,
    chrome,
    event,
    kernel,
    on,
    op,
    recorded_events,
    region,
)
from tests.commands.conftest import Command

EAGER, COMPILED, TRAIN = (
    RECORDED / f"{name}.json.gz" for name in ("mlp-eager", "mlp-compiled", "mlp-eager-train")
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed" / "train.py"
FUSED, GELU, MUL, GEMM = (
    "triton_poi_fused_gelu_mul_0",
    "gelu_kernel",
    "mul_kernel",
    "nvjet_tst_gemm",
)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
H100 = [{"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}]


class Recorder:
    """Rows of one process: each launch is an op, a call and a record on the device."""

    def __init__(self, seed: int = 0) -> None:
        self.rows: list[Event] = []
        self.host_us, self.free_us = 0.0, {7: 0.0, 20: 0.0}  # by stream
        self._jitter = random.Random(seed)

    def launch(
        self,
        name: str,
        us: float,
        op_name: str = "aten::op",
        *,
        stream: int = 7,
        after: int | None = None,
        **args: Any,
    ) -> None:
        number = len(self.rows) + 1
        self.host_us += 10
        self.rows += [
            op(op_name, self.host_us, 8, external_id=number),
            call(number, self.host_us + 1, external_id=number),
        ]
        begin = max(
            self.host_us + 5,
            self.free_us[stream],
            self.free_us[after] if after is not None else 0.0,
        )
        us *= self._jitter.uniform(0.995, 1.005)
        row = kernel(number, begin, name=name, duration=us, external_id=number)
        self.rows.append(
            on(row, stream=stream, device=0) | {"args": row["args"] | {"stream": stream} | args}
        )
        self.free_us[stream] = begin + us

    def around(self, row: Callable[..., Event], name: str, write: Callable[[], object]) -> None:
        start = self.host_us + 5
        write()
        self.rows.append(row(name, start, self.host_us + 9 - start))
        self.host_us += 10

    def save(self, path: Path, **top_level: Any) -> Path:
        path.write_bytes(chrome(*self.rows, deviceProperties=H100, **top_level))
        return path


def frame(name: str, start: float, duration: float) -> Event:
    return event("python_function", name, start, duration, 404)


def decode(
    path: Path,
    *,
    lost: int = -1,
    steps: int = 64,
    stack: bool = True,
    mark: str = "",
    seed: int = 0,
    frames: Sequence[Event] = (),
) -> Path:
    """Write the decode of `steps` tokens by 24 layers; the layer `lost` runs two kernels instead of
    the fused one.
    """
    made = Recorder(seed)

    def token() -> None:
        made.launch("embedding_kernel", 3, "aten::embedding")
        for layer in range(24):
            made.around(
                frame, f"nn.Module: Layer_{layer}", partial(forward, layer)
            ) if stack else mlp(layer)

    def forward(layer: int) -> None:
        made.around(frame, "my_model.py(24): feed_forward", partial(mlp, layer))

    def mlp(layer: int) -> None:
        made.launch(GEMM, 20, "aten::mm")
        if layer == lost:
            made.launch(GELU, 4, "aten::gelu")
            made.launch(MUL, 4, "aten::mul")
        else:
            made.launch(FUSED, 5, FUSED)

    for number in range(steps):
        made.around(region, mark.format(number), token) if mark else token()
    made.rows += frames
    return made.save(path)


@pytest.mark.parametrize(
    ("stack", "where"),
    [(True, "my_model.py:24  Layer_7  feed_forward"), (False, "by aten::gelu and aten::mul")],
)
def test_fusion_lost_in_one_of_24_layers_is_named(
    command: Command, tmp_path: Path, stack: bool, where: str
) -> None:
    usual, same, lost = (
        decode(tmp_path / f"decode.{number}.json", lost=layer, stack=stack, seed=number)
        for number, layer in enumerate((-1, -1, 7))
    )
    assert command("check-trace", "--update", usual)[0] == 0
    code, out, _ = command("check-trace", same)
    assert (code, "decode: PASS  same kernels, same counts" in out) == (0, True)
    code, out, _ = command("check-trace", lost)
    assert code == 1
    assert "decode: REGRESSED  kernels differ from the baseline" in out
    assert "2 kernels instead of 1, by aten::gelu and aten::mul: " in out
    assert "was triton_poi_fused_gelu_mul\n" in out
    assert where in out


def test_function_that_was_open_at_the_start_has_no_line(command: Command, tmp_path: Path) -> None:
    """The line of `train` is that at which it started the profiler."""
    frames = [
        frame("train.py(90): train", 0, 1e6),
        frame("torch/profiler/profiler.py(342): start_trace", 1, 5),
    ]
    usual, lost = (
        decode(
            tmp_path / f"{layer}.json",
            lost=layer,
            steps=4,
            stack=False,
            mark="ProfilerStep#{}",
            frames=frames,
        )
        for layer in (-1, 7)
    )
    assert "(+3.0 us) train.py train " in " ".join(command("trace", usual, lost)[1].split())


@pytest.mark.parametrize(
    "mark", ["ProfilerStep#{}", "execute_context_0(0)_generation_8({})", "step[DECODE bs={}]", ""]
)
def test_steps_are_found_by_annotation_or_period(
    command: Command, tmp_path: Path, mark: str
) -> None:
    usual = decode(
        tmp_path / "a.json", steps=6, stack=False, mark=mark and mark.replace("{}", "1{}")
    )
    assert command("check-trace", "--update", usual, "--baselines", "b.json")[0] == 0
    (kinds,) = json.loads(Path("b.json").read_text())["ranks"].values()
    assert [each["steps"] for each in kinds.values()] == [6]
    assert command("check-trace", usual, "--baselines", "b.json")[0] == 0


def serving(path: Path, *, seed: int, waits: bool = False) -> Path:
    """Write steps of a server: other numbers of experts in each, on streams in any order, and at
    times another GEMM.
    """
    made, chance = Recorder(seed), random.Random(seed)

    def forward() -> None:
        for _ in range(4):
            experts = [("expert_gemm", chance.choice((7, 20))) for _ in range(chance.randint(3, 9))]
            for name, stream in experts:
                made.launch(f"{name}_{chance.choice('abc')}", 10, "aten::grouped_mm", stream=stream)
            made.launch("router_softmax", 3, "aten::softmax")
        if waits:
            made.host_us += 10
            made.rows += [
                op("aten::item", made.host_us, 8),
                call(None, made.host_us + 1, name="cudaStreamSynchronize"),
            ]

    for number in range(12):
        made.around(
            region,
            f"execute_context_0(0)_generation_{1 + number}({1 + chance.randint(1, 99)})",
            forward,
        )
    return made.save(path)


def serve(
    path: Path, *, prompt: int, stack: bool = False, threads: int = 512, slower: float = 1.0
) -> Path:
    """Write a prompt and twelve steps of its decode, as SGLang does: with a stack, each is in a
    function of Python.
    """
    made = Recorder(prompt)

    def forward(name: str, kernels: int) -> None:
        made.around(
            region, name, lambda: [made.launch(GEMM, 20, "aten::mm") for _ in range(kernels)]
        )
        for number in range(2):
            made.launch(
                f"triton_red_fused_{number}",
                5 * slower,
                f"triton_red_fused_{number}",
                block=[threads, 1, 1],
            )

    for name, kernels in (
        (f"step[EXTEND bs=1 toks={prompt}]", prompt),
        *[("step[DECODE bs=1]", 8)] * 12,
    ):
        step = partial(forward, name, kernels)
        made.around(
            frame, "sglang/tp_worker.py(445): forward_batch_generation", step
        ) if stack else step()
    return made.save(path)


@pytest.mark.parametrize("stack", [False, True])
def test_prompt_is_judged_beside_one_of_as_many_tokens(
    command: Command, tmp_path: Path, stack: bool
) -> None:
    """The steps of a decode differ in number and in kernels from that of a prompt, which may be the
    only one.
    """
    usual, same, other = (
        serve(tmp_path / f"{name}.json", prompt=prompt, stack=stack)
        for name, prompt in (("usual", 12), ("same", 12), ("other", 13))
    )
    assert command("check-trace", "--update", usual, "--baselines", "job.json")[0] == 0
    kinds = json.loads(Path("job.json").read_text())["ranks"]["0"]
    assert {name: each["steps"] for name, each in kinds.items()} == {
        "step[EXTEND bs=1 toks=12]": 1,
        "step[DECODE bs=#]": 12,
    }
    code, out, _ = command("check-trace", same, "--baselines", "job.json")
    assert (code, "job step[EXTEND bs=1 toks=12]: PASS  same kernels" in out) == (0, True)
    code, out, _ = command("check-trace", other, "--baselines", "job.json")
    assert (code, "new, not judged: step[EXTEND bs=1 toks=13]" in out) == (0, True)
    code, out, _ = command(
        "check-trace",
        serve(tmp_path / "large.json", prompt=60, stack=stack),
        "--baselines",
        "job.json",
    )
    # too much is not judged
    assert (code, "CHANGED  kinds of steps differ from the baseline" in out) == (1, True)


def test_slower_choice_of_an_autotuner_is_named(command: Command, tmp_path: Path) -> None:
    """An op of Triton has the name and the number of its kernel, and the output names only the
    kernel.
    """
    usual, slower = (
        serve(tmp_path / f"{threads}.json", prompt=12, stack=True, threads=threads, slower=speed)
        for threads, speed in ((512, 1.0), (128, 1.6))
    )
    assert command("check-trace", "--update", usual, "--baselines", "job.json")[0] == 0
    code, out, _ = command("check-trace", slower, "--baselines", "job.json")
    cause = "the same kernel, slower: triton_red_fused x2  10."
    assert (code, cause in out, "threads of a block 512 -> 128" in out) == (1, True, True), out


def test_rank_with_another_choice_is_named(command: Command, tmp_path: Path) -> None:
    traces = [
        serve(
            tmp_path / f"rank{rank}.json", prompt=12, stack=True, threads=128 if rank == 3 else 256
        )
        for rank in range(4)
    ]
    assert command("check-trace", "--update", *traces, "--baselines", "job.json")[0] == 0
    code, out, _ = command("check-trace", *traces, "--baselines", "job.json")
    assert (code, "rank 3: triton_red_fused with 128 threads, 3 others 256" in out) == (0, True), (
        out
    )


def looping(
    path: Path,
    *,
    waits: bool = False,
    elsewhere: bool = False,
    copy_us: float = 9,
    small: int = 2,
    us: float = 5,
    mark: str = "train_step",
) -> Path:
    """Write eight steps of a loop, with a copy in each and a sampling kernel behind each."""
    made = Recorder()

    def step() -> None:
        for _ in range(20):
            made.launch(GEMM, 20, "aten::mm")
        for _ in range(small):
            made.launch(MUL, us, "aten::mul")
        made.launch("Memcpy DtoH (Device -> Pinned)", copy_us, "aten::copy_")
        made.rows[-1]["cat"] = "gpu_memcpy"
        for thread in [404] * waits + [9] * elsewhere:
            made.host_us += 10
            made.rows.append(
                call(None, made.host_us, name="cudaStreamSynchronize") | {"tid": thread}
            )

    for _ in range(8):
        made.around(region, mark, step) if mark else step()
        made.launch("sample_kernel", 5, "aten::multinomial")
    return made.save(path)


OF_A_LOOP: list[tuple[dict[str, Any], int, str]] = [
    ({}, 0, "same kernels"),
    ({"elsewhere": True}, 0, "same kernels"),  # other threads may wait at any time
    ({"waits": True}, 1, "the host waits: cudaStreamSynchronize"),
    ({"copy_us": 400}, 1, "slower: Memcpy DtoH (Device -> Pinned)"),
    ({"us": 30}, 1, "slower: mul_kernel x2"),
    ({"small": 8}, 1, "6 new kernels"),
]


@pytest.mark.parametrize("mark", ["train_step", ""])
def test_loop_is_judged_by_waits_copies_and_kernels(
    command: Command, tmp_path: Path, mark: str
) -> None:
    assert (
        command(
            "check-trace",
            "--update",
            looping(tmp_path / "usual.json", mark=mark),
            "--baselines",
            "b.json",
        )[0]
        == 0
    )
    for change, code, said in OF_A_LOOP:
        got, out, _ = command(
            "check-trace",
            looping(tmp_path / "now.json", mark=mark, **change),
            "--baselines",
            "b.json",
        )
        assert (change, got, said in " ".join(out.split())) == (change, code, True), out
    assert "slower" not in out  # more of them are not slower ones


@pytest.mark.parametrize(("runs", "code"), [(1, 0), (3, 1)])
def test_one_run_has_not_shown_how_far_runs_lie_apart(
    command: Command, tmp_path: Path, runs: int, code: int
) -> None:
    """Forty of sixty kernels are slower by 15 %."""
    usual = [looping(tmp_path / f"{place}.json", small=40) for place in range(runs)]
    assert command("check-trace", "--update", *usual, "--baselines", "b.json")[0] == 0
    slower = looping(tmp_path / "now.json", small=40, us=5.75)
    assert command("check-trace", slower, "--baselines", "b.json")[0] == code


# how often, a kernel, how many of it follow each other, and the time of each
Part = tuple[int, str, int, float]
STEP: Part = (1, GEMM, 5, 20)


def parts(
    path: Path, *parts: Part | list[Part], mark: str = "", start: str = "start_kernel"
) -> Path:
    """Write kernels in order.

    A list is a step: with `mark`, in an annotation, and else with a kernel of its own first.
    """
    made = Recorder()

    def write(several: list[Part]) -> None:
        if start:
            made.launch(start, 5, "aten::embedding")
        for times, name, count, us in several:
            for number in range(times * count):
                made.launch(name.format(chr(97 + number % 26) * 2), us, "aten::mm")

    for each in parts:
        if isinstance(each, list):
            made.around(region, mark, partial(write, each)) if mark else write(each)
        else:
            for number in range(each[0]):
                made.launch(each[1].format(chr(97 + number % 26) * 2), each[3], "aten::bmm")
    return made.save(path)


OTHER: Part = (40, "other_gemm_{}", 1, 200)
FEW: Part = (8, "other_gemm_{}", 1, 5)
LONG: Part = (2, "other_gemm_{}", 1, 2000)
OUTSIDE: dict[str, list[Part | list[Part]]] = {
    "behind": [*[[STEP]] * 4, OTHER],
    "before": [OTHER, *[[STEP]] * 4],
    "middle": [[STEP], [STEP], OTHER, [STEP], [STEP], [STEP]],
    "both": [(20, *OTHER[1:]), *[[STEP]] * 6, (20, *OTHER[1:])],
    "many": [*[[STEP]] * 4, FEW],
    "long": [*[[STEP]] * 12, LONG],
    "other period": [*[[STEP]] * 4, *[[(1, "decoder_gemm", 9, 40), (1, "decoder_norm", 1, 5)]] * 4],
}


@pytest.mark.parametrize(
    ("case", "mark"),
    # With an annotation, those of another period are steps too.
    [
        (case, mark)
        for case in OUTSIDE
        for mark in ("train_step", "my_own_step", "")
        if not (mark and "period" in case)
    ],
)
def test_steps_that_leave_out_much_work_are_refused(
    command: Command, tmp_path: Path, case: str, mark: str
) -> None:
    trace = parts(tmp_path / "a.json", *OUTSIDE[case], mark=mark)
    code, out, err = command("check-trace", "--update", trace, "--baselines", "b.json")
    assert (code, out, Path("b.json").exists()) == (2, "", False)
    assert (
        "outside of its steps, found by train_step, lie"
        if mark == "train_step"
        else "with at least 80 % of"
    ) in err


@pytest.mark.parametrize("mark", ["train_step", "my_own_step", ""])
def test_work_outside_of_steps_is_said_and_bounded(
    command: Command, tmp_path: Path, mark: str
) -> None:
    steps, more = [[STEP]] * 20, (2, "other_gemm_{}", 1, 20)
    usual = parts(tmp_path / "a.json", more, *steps, more, mark=mark)
    assert command("check-trace", "--update", usual, "--baselines", "b.json")[0] == 0
    code, out, _ = command("check-trace", usual, "--baselines", "b.json")
    said = "outside of the steady steps, not judged: 4 of 124 launches, 3.7 % of the time"
    assert (code, said in " ".join(out.split())) == (0, True), out
    for times, us in ((2, 800), (40, 1)):
        worse = parts(tmp_path / "worse.json", more, *steps, (times, *more[1:3], us), mark=mark)
        code, out, _ = command("check-trace", worse, "--baselines", "b.json")
        assert (code, out) == (2, "")


def test_new_kernels_in_one_large_step_are_no_pass(command: Command, tmp_path: Path) -> None:
    steps = [[STEP]] * 5
    usual = parts(tmp_path / "a.json", *steps, mark="train_step")
    assert command("check-trace", "--update", usual, "--baselines", "b.json")[0] == 0
    for number, code in ((1, 0), (20, 1)):
        more = [(number, "new_gemm", 1, 20), STEP]
        got, out, _ = command(
            "check-trace",
            parts(tmp_path / "now.json", *steps, more, mark="train_step"),
            "--baselines",
            "b.json",
        )
        assert (got, "in few steps, not judged: new_gemm" in out) == (code, code == 0), out


def test_long_kernels_where_counts_vary_are_no_pass(command: Command, tmp_path: Path) -> None:
    usual = [[STEP], [STEP, (1, "other_gemm", 1, 20)]] * 5
    path = parts(tmp_path / "a.json", *usual, mark="train_step")
    assert command("check-trace", "--update", path, "--baselines", "b.json")[0] == 0
    for us, code in ((2, 0), (2000, 1)):
        now = parts(
            tmp_path / "now.json", *usual, [STEP, (3, "new_gemm", 1, us)], mark="train_step"
        )
        got, out, _ = command("check-trace", now, "--baselines", "b.json")
        assert (got, "in few steps, not judged: gemm kernels" in out) == (code, code == 0), out


def test_steps_are_found_as_those_of_the_baseline(command: Command, tmp_path: Path) -> None:
    plain, marked, other = (
        parts(tmp_path / f"{name}.json", *[[STEP]] * 6, mark=mark)
        for name, mark in (("plain", ""), ("marked", "my_step"), ("other", "their_step"))
    )
    assert command("check-trace", "--update", plain, "--baselines", "plain-b.json")[0] == 0
    code, out, _ = command("check-trace", marked, "--baselines", "plain-b.json")
    assert (code, "phase renamed, not counted as a change: none -> my_step" in out) == (0, True), (
        out
    )
    assert command("check-trace", "--update", marked, "--baselines", "marked-b.json")[0] == 0
    for trace, there in (
        (other, "steps are found by their_step here"),
        (plain, "steps are found by period here"),
    ):
        code, out, err = command("check-trace", trace, "--baselines", "marked-b.json")
        assert (code, out, "warm-up" in err.splitlines()[2]) == (2, "", False)
        assert f"no step found by my_step, as those of the baseline were; {there}" in err


def renamed(path: Path, trace: Path, names: dict[str, str]) -> Path:
    """Write a trace in which rows have other names."""
    content = trace.read_bytes()
    data = json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)
    for row in data["traceEvents"]:
        row["name"] = names.get(row["name"], row["name"])
    path.write_text(json.dumps(data))
    return path


def test_renamed_phase_or_module_is_no_change(command: Command, tmp_path: Path) -> None:
    now = renamed(tmp_path / "now.json", EAGER, {"mlp-eager": "my-mlp"})
    assert command("check-trace", "--update", EAGER, "--baselines", "b.json")[0] == 0
    code, out, _ = command("check-trace", now, "--baselines", "b.json")
    assert (code, "phase renamed, not counted as a change: mlp-eager -> my-mlp" in out) == (
        0,
        True,
    ), out
    assert "GPU time 233.9 -> 233.9 us" in out
    usual = decode(tmp_path / "usual.json", steps=6, mark="ProfilerStep#{}")
    assert command("check-trace", "--update", usual, "--baselines", "c.json")[0] == 0
    layers = {f"nn.Module: Layer_{number}": f"nn.Module: Block_{number}" for number in range(24)}
    for lost, code, status in ((-1, 0, "PASS"), (7, 1, "REGRESSED")):
        trace = renamed(
            now, decode(tmp_path / "more.json", steps=6, mark="ProfilerStep#{}", lost=lost), layers
        )
        got, out, _ = command("check-trace", trace, "--baselines", "c.json")
        assert (got, f"c: {status}" in out) == (code, True), out
        assert "module renamed, not counted as a change: Layer -> Block" in out
        assert (code == 0) != ("2 kernels instead of 1, by aten::gelu and aten::mul: " in out), out


def phases(path: Path, **counts: int) -> Path:
    """Write steps in which each phase runs a GEMM as often as it says, and a kernel of its own."""
    made = Recorder()

    def phase(name: str, count: int) -> None:
        made.launch(f"{name}_kernel", 5)
        for _ in range(count):
            made.launch(GEMM, 20, "aten::mm")

    def step() -> None:
        for name, count in counts.items():
            made.around(region, name, partial(phase, name, count))

    for number in range(6):
        made.around(region, f"ProfilerStep#{number}", step)
    return made.save(path)


@pytest.mark.parametrize(
    ("counts", "code"), [((3, 3), 0), ((5, 1), 0), ((3, 4), 1), ((5, 2), 1), ((3, 2), 1)]
)
def test_kernel_in_another_phase_is_no_change(
    command: Command, tmp_path: Path, counts: tuple[int, int], code: int
) -> None:
    assert (
        command(
            "check-trace",
            "--update",
            phases(tmp_path / "a.json", first=4, second=2),
            "--baselines",
            "b.json",
        )[0]
        == 0
    )
    now = phases(tmp_path / "now.json", first=counts[0], second=counts[1])
    got, out, _ = command("check-trace", now, "--baselines", "b.json")
    assert (got, "in another place, not counted as a change: nvjet" in out) == (code, code == 0), (
        out
    )
    assert ("new kernel" in out or "fewer" in out or "gone" in out) == (code == 1), out


def test_update_under_ci_needs_force(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    code, out, err = command("check-trace", "--update", EAGER, "--baselines", "b.json")
    assert (code, out, Path("b.json").exists()) == (2, "", False)
    assert "check-trace --update is refused under CI" in err
    assert "kernelgauge check-trace --update --force" in err
    assert command("check-trace", "--update", "--force", EAGER, "--baselines", "b.json")[0] == 0
    assert command("check-trace", EAGER, "--baselines", "b.json")[0] == 0


def test_update_waits_for_the_lock_of_its_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.0)
    with baselines.BaselineStore(tmp_path / "stored").locked():
        code, _, err = command("check-trace", "--update", EAGER, "--baselines", tmp_path / "stored")
    assert (code, "another update of these baselines is running" in err) == (2, True)
    assert command("check-trace", "--update", EAGER, "--baselines", tmp_path / "stored")[0] == 0


def test_long_names_in_a_baseline_make_short_messages(command: Command, tmp_path: Path) -> None:
    assert command("check-trace", "--update", EAGER, "--baselines", "b.json")[0] == 0
    for field, said in (("device", "INCOMPARABLE"), ("found_by", "no step found by xxx")):
        data = json.loads(Path("b.json").read_text())
        Path("long.json").write_text(json.dumps(data | {field: "x" * 100_000}))
        code, out, err = command("check-trace", EAGER, "--baselines", "long.json")
        assert (code, out, said in err, len(err) < 10_000) == (2, "", True, True)


def growing(path: Path, steps: range, *, us: float = 20) -> Path:
    """Write steps of a decode: the attention of each takes longer than that of the step before."""
    made = Recorder()

    def step(number: int) -> None:
        for _ in range(10):
            made.launch(GEMM, 20, "aten::mm")
        made.launch("attention_kernel", 10 + number, "aten::attention")
        made.launch(GELU, us, "aten::gelu")

    for number in steps:
        made.around(region, "decode_step", partial(step, number))
    return made.save(path)


def test_later_steps_with_longer_attention_are_green(command: Command, tmp_path: Path) -> None:
    assert (
        command(
            "check-trace",
            "--update",
            growing(tmp_path / "usual.json", range(20)),
            "--baselines",
            "b.json",
        )[0]
        == 0
    )
    for us, code in ((20, 0), (26, 1)):
        got, out, _ = command(
            "check-trace",
            growing(tmp_path / "now.json", range(12, 20), us=us),
            "--baselines",
            "b.json",
        )
        assert (us, got, "slower: gelu_kernel" in out) == (us, code, code == 1), out


def test_edited_baseline_is_no_regression(command: Command, tmp_path: Path) -> None:
    usual, file = looping(tmp_path / "usual.json"), Path("b.json")
    assert command("check-trace", "--update", usual, "--baselines", file)[0] == 0
    (kinds,) = json.loads(file.read_text())["ranks"].values()
    (steps,) = kinds.values()
    for name, value in (
        ("steps", 0),
        ("wall", []),
        ("compute", []),
        ("rows", [[0, 2, 1, [5.0]]]),
        ("rows", [[0, 1, 1, []]]),
        ("rows", [[0, 1, 1, [5.0]], [1, 1, 1, [5.0, 5.0]]]),  # of one run, and of two
        ("rows", [[0, 1, 1, [5.0, 5.0]]]),
        ("exposed_us", [0.0, 0.0]),
        ("communication_us", [-1.0]),
    ):
        data = json.loads(file.read_text())
        data["ranks"]["0"] = {"": steps | {name: value}}
        Path("edited.json").write_text(json.dumps(data))
        code, out, err = command("check-trace", usual, "--baselines", "edited.json")
        assert (code, out, "not a baseline of traces" in err) == (2, "", True), err


def test_steps_that_differ_honestly_are_green(command: Command, tmp_path: Path) -> None:
    usual = [serving(tmp_path / f"serve.{seed}.json", seed=seed) for seed in range(3)]
    assert command("check-trace", "--update", *usual)[0] == 0
    for seed in range(3, 13):
        code, out, _ = command("check-trace", serving(tmp_path / f"serve.{seed}.json", seed=seed))
        assert (seed, code) == (seed, 0), out
    code, out, _ = command("check-trace", serving(tmp_path / "serve.99.json", seed=99, waits=True))
    assert code == 1
    assert "the host waits: aten::item: cudaStreamSynchronize" in out


def reduce(made: Recorder, sent: int) -> None:
    size = {
        "Collective name": "allreduce",
        "In msg nelems": sent,
        "dtype": "Float",
        "Group size": 2,
    }
    made.launch(REDUCE, 60, "c10d::allreduce_", stream=20, after=7, **size)


def training(
    folder: Path,
    *,
    lost: str = "",
    seed: int = 0,
    sent: int = 1000,
    slow: int = -1,
    world: int = 2,
    at: int = 0,
    slow_us: int = 150,
    usual_us: int = 100,
    stall_us: int = 0,
) -> list[Path]:
    """Write the traces of two ranks: a backward pass of eight layers, each of which reduces its
    gradients.

    The host runs ahead of the GPU. `stall_us`: how long it waits for a batch.
    """
    folder.mkdir()
    paths = []
    for rank in range(2):
        made = Recorder(10 * seed + rank)

        def backward(made: Recorder = made, rank: int = rank) -> None:
            made.host_us += stall_us
            for _ in range(8):
                made.launch("wgrad", slow_us if rank == slow else usual_us, "aten::mm")
                if lost != "late":
                    reduce(made, sent)
                    made.free_us[7] = (
                        max(made.free_us.values()) if lost == "wait" else made.free_us[7]
                    )
            for _ in range(8 if lost == "late" else 0):
                reduce(made, sent)

        for number in range(3, 7):
            made.around(region, f"ProfilerStep#{number}", backward)
        info = {"backend": "nccl", "rank": rank, "world_size": world}
        base = {"baseTimeNanoseconds": (1_790_000_000 + at) * 10**9}
        paths.append(made.save(folder / f"rank{rank}.json", distributedInfo=info, **base))
    return paths


@pytest.fixture
def usual(command: Command, tmp_path: Path) -> Path:
    """Return the baseline of three runs of two ranks."""
    runs = [
        path
        for seed in range(3)
        for path in training(tmp_path / f"usual{seed}", seed=seed, at=100 * seed)
    ]
    assert command("check-trace", "--update", *runs, "--baselines", tmp_path / "job.json")[0] == 0
    return tmp_path / "job.json"


@pytest.mark.parametrize(("usual_us", "slow_us", "code"), [(100, 130, 0), (115, 150, 1)])
def test_slower_job_is_seen_though_ranks_change_places(
    command: Command, tmp_path: Path, usual_us: int, slow_us: int, code: int
) -> None:
    """The rank that waits for the other computes slower."""

    def run(seed: int, **times: int) -> list[Path]:
        return training(tmp_path / f"{seed}", seed=seed, at=100 * seed, slow=seed % 2, **times)

    runs = [path for seed in range(3) for path in run(seed, slow_us=130)]
    assert command("check-trace", "--update", *runs, "--baselines", "job.json")[0] == 0
    found, out, _ = command(
        "check-trace", *run(3, usual_us=usual_us, slow_us=slow_us), "--baselines", "job.json"
    )
    assert (found, "job: REGRESSED  GPU time" in out) == (code, code == 1), out


CHANGES: list[tuple[dict[str, Any], int, str]] = [
    ({}, 0, "job: PASS  communication on rank 0: 0.0 us exposed, 100 % beside other kernels"),
    ({"lost": "wait"}, 1, "job: REGRESSED  communication on rank 0: overlap lost: 0.0 -> 47"),
    ({"lost": "late"}, 1, "launched later, 0 kernels follow a collective instead of 4"),
    ({"sent": 2000}, 1, "AllReduce_Sum_f32_RING_LL 2000 Float"),
    ({"slow": 1}, 1, "job, rank 1: REGRESSED  GPU time 8"),
    ({"stall_us": 300}, 0, "job: PASS  step time 8"),
    ({"stall_us": 3000}, 1, "job: REGRESSED  step time 8"),
]


def test_step_of_two_ranks_is_judged(command: Command, tmp_path: Path, usual: Path) -> None:
    for number, (change, code, said) in enumerate(CHANGES):
        got, out, _ = command(
            "check-trace",
            *training(tmp_path / f"now{number}", seed=9, **change),
            "--baselines",
            usual,
        )
        assert (change, got, said in out) == (change, code, True), out


@pytest.mark.parametrize(("runs", "code"), [(1, 0), (3, 1)])
def test_overlap_lost_on_one_rank_fails_beside_several_runs(
    command: Command, tmp_path: Path, runs: int, code: int
) -> None:
    """A rank may have waited for the other one: one run has not shown whether ranks do."""
    before = [
        path
        for seed in range(runs)
        for path in training(tmp_path / f"{seed}", seed=seed, at=100 * seed)
    ]
    assert command("check-trace", "--update", *before, "--baselines", "job.json")[0] == 0
    (lost, _), (_, other) = (
        training(tmp_path / name, seed=9, lost=name.strip("-")) for name in ("wait", "-")
    )
    found, out, _ = command("check-trace", lost, other, "--baselines", "job.json")
    assert (found, "communication on rank 0: overlap lost" in out) == (code, code == 1), out


def test_ranks_that_change_places_are_green(command: Command, tmp_path: Path) -> None:
    runs = [
        path
        for seed in range(3)
        for path in training(tmp_path / f"a{seed}", seed=seed, slow=0, at=100 * seed)
    ]
    assert command("check-trace", "--update", *runs, "--baselines", "job.json")[0] == 0
    assert (
        command(
            "check-trace", *training(tmp_path / "b", seed=9, slow=1), "--baselines", "job.json"
        )[0]
        == 0
    )
    code, out, _ = command(
        "check-trace",
        *training(tmp_path / "c", seed=9, slow=1, slow_us=260),
        "--baselines",
        "job.json",
    )
    assert (code, "job, rank 1: REGRESSED  GPU time" in out) == (1, True), out


def sampling(path: Path, *, slower: float = 1.0, seed: int = 0) -> Path:
    """Write steps with a phase of kernels each of which is less than 1 % of a step."""
    made = Recorder(seed)

    def token() -> None:
        for _ in range(24):
            made.launch(GEMM, 20, "aten::mm")
        made.around(region, "<sample>", sample)

    def sample() -> None:
        for number in range(20):
            made.launch(f"draw_kernel<{number}>", 2 * slower, "aten::draw")

    for number in range(6):
        made.around(region, f"ProfilerStep#{number}", token)
    return made.save(path)


def test_phase_of_small_slower_kernels_fails_and_page_shows_it(
    command: Command, tmp_path: Path
) -> None:
    usual = [sampling(tmp_path / f"usual{seed}.json", seed=seed) for seed in range(2)]
    assert command("check-trace", "--update", *usual, "--baselines", "b.json")[0] == 0
    for name, slower, code in (("same", 1.0, 0), ("slower", 1.4, 1)):
        now = sampling(tmp_path / f"{name}.json", slower=slower, seed=7)
        got, out, _ = command("check-trace", now, "--baselines", "b.json", "--html", "page.html")
        assert (got, "the same kernel, slower: draw_kernel x20" in out) == (code, code == 1), out
        page = Path("page.html").read_text()
        # of the step and its two phases; one explains them
        assert page.count('class="gate"') == 1 + 3
        assert ("<h1>REGRESSED</h1>" in page, "<h1>PASS</h1>" in page) == (code == 1, code == 0)
        bars = re.findall(r'<a class="code" href="#(p\d)">([^<]*)</a>', page)
        assert sorted(name for _, name in bars) == ["&lt;sample&gt;", "no phase", "step"]
        assert bars[0][1] == "&lt;sample&gt;" or code == 0  # the largest change stands first
        anchor = next(anchor for anchor, name in bars if name == "&lt;sample&gt;")
        table = page.split(f'id="{anchor}"')[1].split("</table>")[0]
        (row,) = re.findall(r"<tr>.*draw_kernel&lt;19&gt;.*", table)
        times_before, times_now, before_us, now_us, _ = map(
            float, re.findall(r'<td class="num">([^<]+)</td>', row)
        )
        assert (times_before, times_now) == (1, 1)
        assert now_us / before_us == pytest.approx(slower, rel=0.02)
        assert not {"<script", "<sample>"} & {*re.findall(r"<[a-z]+>?", page)}


def bad_inputs(folder: Path) -> Iterator[tuple[list[Path], str]]:
    """Yield traces that cannot be checked, and what is said of them."""
    one, two = training(folder / "one", seed=1), training(folder / "two", seed=2, at=86400)
    cut, single = folder / "cut.json", Recorder()
    cut.write_bytes(one[0].read_bytes()[:-400])
    single.launch("add_kernel", 3)
    yield [cut, one[1]], "the file was cut off"
    yield [one[0], two[1]], "s before another began"
    yield [one[0], *training(folder / "more", world=8)[1:]], "the traces are of different jobs"
    yield [*one, two[0]], "each rank as often"
    yield (
        [decode(folder / "first.json", steps=1, mark="ProfilerStep#{}")],
        "a profile of the warm-up",
    )
    yield [single.save(folder / "none.json")], "there are no other steps"
    moved = "INCOMPARABLE: structure not compared: "
    yield [one[0]], f"{moved}ranks [0, 1] -> [0]"
    has_modules = decode(folder / "modules.json", steps=4, mark="ProfilerStep#{}")
    yield (
        [has_modules],
        f"{moved}world size 2 -> not recorded, ranks [0, 1] -> [0], modules not recorded -> recorded",
    )
    for path in (other := training(folder / "gpu", seed=3)):
        path.write_text(path.read_text().replace("NVIDIA H100", "NVIDIA B200"))
    yield other, f"{moved}device NVIDIA H100 -> NVIDIA B200"


def test_bad_input_is_one_sentence_and_overwrites_nothing(
    command: Command, tmp_path: Path, usual: Path
) -> None:
    before = usual.read_bytes()
    for traces, said in bad_inputs(tmp_path):
        code, out, err = command("check-trace", *traces, "--baselines", usual)
        assert (code, out, said in err) == (2, "", True), err
        if "INCOMPARABLE" not in said:
            assert command("check-trace", "--update", *traces, "--baselines", usual)[0] == 2
    assert usual.read_bytes() == before
    code, _, err = command("check-trace", "--update", EAGER, COMPILED, "--baselines", usual)
    assert (code, "the traces are of different jobs" in err) == (2, True)
    usual.write_text("{}")
    assert command("check-trace", "--update", EAGER, "--baselines", usual)[0] == 2
    assert usual.read_text() == "{}"


def test_update_writes_the_file_that_check_reads(command: Command, tmp_path: Path) -> None:
    code, out, err = command("check-trace", EAGER)
    assert (code, out, "NO_BASELINE" in err) == (2, "", True)
    assert command("check-trace", "--update", EAGER)[0] == 0
    assert Path("baselines/traces/mlp-eager.json").is_file()
    code, out, _ = command("check-trace", EAGER)
    assert (code, "GPU time 233.9 -> 233.9 us" in out) == (0, True)
    assert "not judged: the noise between processes and machines hides +100 %" in " ".join(
        out.split()
    )
    assert (
        command("check-trace", COMPILED, "--baselines", "baselines/traces/mlp-eager.json")[0] == 1
    )


def test_check_trace_fails_a_test_with_the_words_of_the_command(
    command: Command, tmp_path: Path
) -> None:
    command("check-trace", "--update", TRAIN, "--baselines", "train.json")
    assert {each.status.value for each in check_trace(TRAIN, baselines="train.json")} == {
        "PASS",
        "NOT_JUDGED",
    }
    slower = recorded_events("mlp-eager-train")
    for row in slower:
        row["dur"] *= 2 if row["cat"] == "kernel" and "gelu" in row["name"].lower() else 1
    Path("slower.json").write_bytes(chrome(*slower, deviceProperties=[{"name": "NVIDIA H200"}]))
    with pytest.raises(
        AssertionError, match=r"(?s)train: REGRESSED  GPU time.*the same kernel, slower: .*gelu"
    ):
        check_trace("slower.json", baselines="train.json")
    with pytest.raises(KernelgaugeError, match="NO_BASELINE"):
        check_trace(TRAIN, baselines="nothing.json")


MAKERS = {
    "Ascend": (
        [{"ph": "M", "name": "process_labels", "pid": 8, "tid": 0, "args": {"labels": "NPU"}}],
        lambda number, at: [
            op("aten::add", at, 5),
            {"ph": "X", "name": "Add", "pid": 8, "tid": 3, "ts": at, "dur": 1},
        ],
        "8 rows of NPU, kernels of a device",
    ),
    "JAX": (
        [
            {
                "ph": "M",
                "name": "process_name",
                "pid": 1,
                "tid": 0,
                "args": {"name": "/device:GPU:0 NVIDIA H100"},
            },
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 1,
                "tid": 13,
                "args": {"name": "Stream #13(Compute)"},
            },
        ],
        lambda number, at: [
            {
                "ph": "X",
                "name": name,
                "pid": 1,
                "tid": 13,
                "ts": at + after,
                "dur": 1,
                "args": {"hlo_op": name},
            }
            for after, name in enumerate(("fusion_1", "cublas_gemm", "fusion_1"))
        ],
        "modules, lines of code, ops of kernels, launch calls",
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_trace_of_other_maker_says_what_is_not_known(
    command: Command, tmp_path: Path, maker: str
) -> None:
    head, rows, unknown = MAKERS[maker]
    for name, added in (("usual", False), ("more", True)):
        events = [*head]
        for number in range(1, 9):
            events += rows(number, 100 * number)
            if added:
                events += [
                    row | {"name": "aten::extra"} for row in rows(100 + number, 100 * number + 50)
                ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": events}))
    assert command("check-trace", "--update", "usual.json", "--baselines", "b.json")[0] == 0
    code, out, _ = command("check-trace", "usual.json", "--baselines", "b.json")
    assert (code, unknown in " ".join(out.split())) == (0, True), out
    # XLA counts the fusions of a program
    renumbered = Path("usual.json").read_text().replace("fusion_1", "fusion_7")
    Path("renumbered.json").write_text(renumbered)
    assert command("check-trace", "renumbered.json", "--baselines", "b.json")[0] == 0
    assert command("check-trace", "more.json", "--baselines", "b.json")[0] == 1


# A process imports torch once. Another group would find the addresses of the first one in its store.
BOTH = """
import runpy, sys
import torch.distributed as dist

init = dist.init_process_group
store, rank, size = next(dist.rendezvous("env://"))
for options in ("usual --runs 2", "late --runs 1 --lose-overlap late"):
    own = {{"store": dist.PrefixStore(options, store), "rank": rank, "world_size": size}}
    dist.init_process_group = lambda *args, **how: init(*args, **how, **own)
    sys.argv[1:] = ["--traces", *options.split()]
    runpy.run_path({!r}, run_name="__main__")
"""


def test_example_of_two_ranks_is_recorded_and_checked(command: Command, tmp_path: Path) -> None:
    """It runs with Gloo here: the trace of a CPU shows when a collective is launched, and not what
    runs beside it.
    """
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    Path("both.py").write_text(BOTH.format(str(EXAMPLE)))
    subprocess.run([*start, "both.py"], check=True, capture_output=True)
    assert (
        command(
            "check-trace",
            "--update",
            *sorted(Path("usual").glob("*/*.json.gz")),
            "--baselines",
            "job.json",
        )[0]
        == 0
    )
    assert (
        command("check-trace", *sorted(Path("usual/run0").iterdir()), "--baselines", "job.json")[0]
        == 0
    )
    code, out, _ = command(
        "check-trace", *sorted(Path("late/run0").iterdir()), "--baselines", "job.json"
    )
    assert (code, "launched later, 24 kernels follow a collective instead of 88" in out) == (
        1,
        True,
    ), out
