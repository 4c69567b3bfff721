"""What a launch configuration costs against the others that the autotuner drew."""

from __future__ import annotations

from kernelgauge.judge import Reason, Status, Verdict, calibrated, compare, judge_time
from kernelgauge.judge.lottery import choice, odds
from kernelgauge.run import Timer
from tests.builders import FUSED, H200, OTHER_SOURCE, baseline, drawn, mlp_kernels, reasons, run

FAST, SLOW = (205.0, 205.1, 205.2, 205.1) * 4, (222.3, 222.4, 222.5, 222.4) * 4
US = {1024: 38.1, 512: 55.4}
LOTTERY = drawn({512: 3, 1024: 1}, us=US, device=SLOW)


def judged(device: tuple[float, ...], *, xblock: int, source: str | None = None) -> Verdict:
    """A run against a baseline in which the slow configuration was drawn three times of four."""
    runs = [
        run(device=SLOW if block == 512 else FAST, kernels=mlp_kernels(us=US[block], xblock=block))
        for block in (512, 512, 512, 1024)
    ]
    stored = calibrated(runs, suite="perf")
    kernels = mlp_kernels(us=US.get(xblock, 55.4), xblock=xblock, **({} if source is None else {"source": source}))
    return judge_time(Timer.DEVICE, run(device=device, kernels=kernels), stored, compare(H200, H200))


def test_odds_are_draws_of_all_draws() -> None:
    assert [odds(LOTTERY, entry) for entry in LOTTERY.entries] == ["drawn 3 of 4", "drawn 1 of 4"]


def test_a_slow_choice_is_told_with_its_odds_and_its_cost() -> None:
    slow, fast = LOTTERY.entries
    assert choice(LOTTERY, slow) == (
        "drawn 3 of 4; the fastest (drawn 1 of 4) takes 17.3 us less (-7.8 %)\n"
        f"{FUSED}: XBLOCK 1024 -> 512, num_warps 4 -> 8"
    )
    assert choice(LOTTERY, fast) is None


def test_of_the_only_choice_and_of_one_that_costs_nothing_nothing_is_said() -> None:
    alone = baseline()
    assert choice(alone, alone.entries[0]) is None
    equal = drawn({512: 2, 1024: 1})
    assert [choice(equal, entry) for entry in equal.entries] == [None, None]


def test_a_run_is_judged_by_the_times_of_its_own_configuration() -> None:
    assert judged(SLOW, xblock=512).status is Status.PASS
    assert judged(FAST, xblock=1024).status is Status.PASS
    assert judged(SLOW, xblock=1024).status is Status.REGRESSED
    assert judged(FAST, xblock=512).status is Status.IMPROVED


def test_a_slow_draw_passes_and_says_what_it_costs() -> None:
    verdict = judged(SLOW, xblock=512)
    assert verdict.status is Status.PASS
    (cost,) = reasons(verdict, "tuning")
    assert cost.startswith("drawn 3 of 4; the fastest (drawn 1 of 4) takes 17.3 us less (-7.8 %)\n")


def test_a_lucky_draw_has_nothing_to_say() -> None:
    assert judged(FAST, xblock=1024).reasons == ()


def test_a_slow_draw_of_another_source_is_told_too() -> None:
    assert len(reasons(judged(SLOW, xblock=512, source=OTHER_SOURCE), "tuning")) == 1


def test_a_configuration_that_nobody_drew_is_judged_as_a_change_with_its_cause() -> None:
    verdict = judged(tuple(1.1 * value for value in SLOW), xblock=256)
    assert verdict.status is Status.REGRESSED
    (why,) = [text for text in reasons(verdict, "why") if "autotuner" in text]
    assert why.startswith(FUSED)
    assert why.endswith("XBLOCK 512 -> 256: Inductor's autotuner chose differently")
    assert reasons(verdict, "tuning") == []


def test_a_configuration_that_nobody_drew_and_takes_as_long_passes_and_is_named() -> None:
    verdict = judged(SLOW, xblock=256)
    assert verdict.status is Status.PASS
    assert verdict.reasons == (Reason("tuning", "a launch configuration that no baseline has; it takes as long"),)
