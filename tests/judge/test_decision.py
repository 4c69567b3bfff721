"""The decision rule: every status, every gate, and what would decide."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelgauge.judge import Decision, Prior, Seen, Status, decide
from tests.builders import ELSEWHERE, HERE, policy, seen

# Of 200 us, 1 % and 1 us (0.5 %) matter and 10 % must not be missed. The interval is +-0.6 % on the same GPU.
BEFORE = [seen() for _ in range(10)]
NOISY = Prior(0.05)


def decided(factor: float = 1.0, before: list[Seen] = BEFORE, **of_policy: Any) -> Decision:
    return decide(before, seen(200.0 * factor), policy(**of_policy), comparisons=21)


# -- each status ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "status"),
    [
        (1.0, Status.PASS),
        (1.009, Status.PASS),
        (0.991, Status.PASS),
        (1.011, Status.REGRESSED),
        (2.0, Status.REGRESSED),
        (0.989, Status.IMPROVED),
        (0.5, Status.IMPROVED),
    ],
)
def test_where_the_noise_is_small_the_tolerance_decides(factor: float, status: Status) -> None:
    decision = decided(factor)
    assert decision.status is status
    assert decision.change.estimate == pytest.approx(factor - 1)
    assert decision.change.low is not None
    assert decision.change.high is not None
    assert decision.change.low < factor - 1 < decision.change.high


def test_where_a_slowdown_that_matters_cannot_be_excluded_nothing_is_decided() -> None:
    assert decided(1.0, process=NOISY).status is Status.UNDECIDED
    assert decided(1.05, process=NOISY).status is Status.UNDECIDED


def test_a_speedup_that_cannot_be_told_from_noise_passes_once_no_slowdown_can_hide_in_it() -> None:
    assert decided(0.8, process=NOISY, tolerance=0.3).status is Status.PASS


# -- each gate on its own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "status"), [(1.03, Status.REGRESSED), (0.97, Status.IMPROVED)])
@pytest.mark.parametrize(
    "gate",
    [
        pytest.param({"process": Prior(0.013)}, id="statistical"),
        pytest.param({"tolerance": 0.035}, id="relative"),
        pytest.param({"floor_us": 6.5}, id="absolute"),
    ],
)
def test_each_gate_alone_keeps_a_change_from_being_called_one(
    gate: dict[str, Any], factor: float, status: Status
) -> None:
    assert decided(factor).status is status
    assert decided(factor, **gate).status is Status.PASS


def test_the_floor_is_of_the_time_before() -> None:
    short = [seen(20.0) for _ in range(10)]
    for mean_us, status in (
        (20.98, Status.PASS),
        (21.02, Status.REGRESSED),
        (19.02, Status.PASS),
        (18.98, Status.IMPROVED),
    ):
        assert decide(short, seen(mean_us), policy(floor_us=1.0)).status is status


@pytest.mark.parametrize(("blind_us", "status"), [(25.0, Status.PASS), (5.0, Status.UNDECIDED)])
def test_what_must_not_be_missed_is_a_share_or_a_time_whichever_is_more(blind_us: float, status: Status) -> None:
    noisy = policy(process=Prior(0.02), blind=0.05, blind_us=blind_us)
    assert decide(BEFORE, seen(), noisy, comparisons=21).status is status


# -- the level ------------------------------------------------------------------------------------------------------


def test_the_level_is_shared_by_all_comparisons_of_a_run() -> None:
    assert decided().change.confidence == pytest.approx(1 - 2 * 0.01 / 21)
    assert decide(BEFORE, seen(), policy()).change.confidence == pytest.approx(0.98)


def test_of_more_comparisons_each_must_be_surer() -> None:
    edge = policy(process=Prior(0.005))
    assert decide(BEFORE, seen(204.0), edge, comparisons=1).status is Status.REGRESSED
    assert decide(BEFORE, seen(204.0), edge, comparisons=1000).status is Status.PASS


# -- little is known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"replicates": 1}, {}, id="a baseline of one replicate"),
        pytest.param({}, {"replicates": 1}, id="a run of one replicate"),
        pytest.param({"host_share": 1.0, "control_us": None}, {"host_share": 1.0}, id="no control before"),
        pytest.param({"host_share": 1.0}, {"host_share": 1.0, "control_us": None}, id="no control now"),
    ],
)
def test_where_nothing_is_known_of_the_noise_nothing_is_decided(
    before: dict[str, Any], after: dict[str, Any], factor: float
) -> None:
    decision = decide([seen(**before)], seen(200.0 * factor, **after), policy())
    assert (decision.status, decision.missing_replicates) == (Status.UNDECIDED, None)
    assert (decision.change.low, decision.change.high) == (None, None)
    assert decision.change.estimate == pytest.approx(factor - 1)
    assert decision.suspicious


def test_one_process_of_one_replicate_does_not_blind_a_baseline_of_several() -> None:
    others = [seen(199.8), seen(200.0), seen(200.2)]
    assert decided(1.05, [*others, seen(200.1, replicates=1)]) == decided(1.05, others)
    assert decided(1.05, others).status is Status.REGRESSED


def width(decision: Decision) -> float:
    assert decision.change.low is not None
    assert decision.change.high is not None
    return decision.change.high - decision.change.low


def test_a_baseline_of_one_process_decides_by_what_is_expected_and_less_surely() -> None:
    one, ten = decided(1.02, before=[seen()]), decided(1.02)
    assert one.status is ten.status is Status.REGRESSED
    assert width(one) > width(ten)


def test_a_baseline_of_another_gpu_decides_with_a_wider_interval() -> None:
    elsewhere = [seen(gpu=ELSEWHERE) for _ in range(10)]
    assert width(decided(1.02, before=elsewhere)) > 3 * width(decided(1.02))
    assert decided(1.02, before=elsewhere).status is Status.PASS
    assert decided(1.1, before=elsewhere).status is Status.REGRESSED


def test_a_baseline_of_several_gpus_judges_each_of_them_by_its_own() -> None:
    both = [seen(200.0, gpu=HERE) for _ in range(5)] + [seen(208.0, gpu=ELSEWHERE) for _ in range(5)]
    assert decide(both, seen(208.0, gpu=HERE), policy(), comparisons=21).status is Status.REGRESSED
    assert decide(both, seen(208.0, gpu=ELSEWHERE), policy(), comparisons=21).status is Status.PASS
    assert decide(both, seen(200.0, gpu=ELSEWHERE), policy(), comparisons=21).status is Status.IMPROVED
    assert decide(both, seen(208.0, gpu="a third"), policy(), comparisons=21).status is Status.PASS


# -- what the machine explains --------------------------------------------------------------------------------------


def test_what_the_machine_may_have_done_is_not_blamed_on_the_code() -> None:
    def explained(low: float, high: float) -> Decision:
        return decide(BEFORE, seen(204.0), policy(), comparisons=21, explained=(low, high))

    for machine in ((0.0, 0.0), (-0.02, 0.0), (0.0, 0.01)):  # none, a faster one, and one that explains the half
        assert (explained(*machine).status, explained(*machine).explained) == (Status.REGRESSED, False)
    hidden = explained(0.0, 0.02)
    assert (hidden.status, hidden.explained, hidden.missing_replicates) == (Status.UNDECIDED, True, None)
    assert hidden.suspicious


@pytest.mark.parametrize("factor", [1.02, 1.05, 1.095, 1.099, 1.1, 1.12, 1.15])
def test_a_slowdown_that_the_machine_may_be_is_undecided_however_large_it_is(factor: float) -> None:
    """Below what must not be missed, about it and above: never a PASS, and no replicates can tell."""
    alone = decide(BEFORE, seen(200.0 * factor), policy(), comparisons=21)
    hidden = decide(BEFORE, seen(200.0 * factor), policy(), comparisons=21, explained=(0.0, math.log(factor)))
    assert (alone.status, alone.explained) == (Status.REGRESSED, False)
    assert (hidden.status, hidden.explained, hidden.missing_replicates) == (Status.UNDECIDED, True, None)


def test_of_a_slowdown_that_the_machine_may_be_no_number_of_replicates_is_told() -> None:
    """Though enough of them would show that the machine, if it did all that it may have, did not do all of it."""
    noisy = seen(230.0, spread=0.05, replicates=12)
    alone = decide(BEFORE, noisy, policy(), comparisons=21)
    hidden = decide(BEFORE, noisy, policy(), comparisons=21, explained=(0.0, 0.1))
    surer = decide(BEFORE, seen(230.0, replicates=100), policy(), comparisons=21, explained=(0.0, 0.1))
    assert alone.status is surer.status is Status.REGRESSED
    assert (hidden.status, hidden.explained, hidden.missing_replicates) == (Status.UNDECIDED, True, None)


def test_replicates_that_would_only_show_what_the_machine_may_have_done_are_not_asked_for() -> None:
    """9.9 % of which the machine may have made all: more of them would tell it from noise, and not from the machine."""
    noisy = seen(219.8, spread=0.15, replicates=4)
    alone = decide(BEFORE, noisy, policy(), comparisons=21)
    explained = decide(BEFORE, noisy, policy(), comparisons=21, explained=(0.0, 0.12))
    assert (alone.status, alone.explained) == (explained.status, False) == (Status.UNDECIDED, False)
    assert alone.missing_replicates is not None
    assert (explained.missing_replicates, explained.explained) == (None, True)


def test_a_change_that_no_gate_cares_for_passes_whatever_the_machine_did() -> None:
    for factor in (1.0, 1.009, 0.98):
        decision = decide(BEFORE, seen(200.0 * factor), policy(), comparisons=21, explained=(-0.001, 0.03))
        assert decision.status is (Status.IMPROVED if factor < 0.99 else Status.PASS)
        assert not decision.explained


def test_what_the_machine_may_have_hidden_widens_the_interval_upwards() -> None:
    plain = decided()
    hidden = decide(BEFORE, seen(), policy(), comparisons=21, explained=(-0.02, 0.0))
    assert hidden.change.low == plain.change.low
    assert plain.change.high is not None
    assert hidden.change.high == pytest.approx((1 + plain.change.high) * math.exp(0.02) - 1)


def test_where_the_machine_may_hide_what_must_not_be_missed_no_number_of_replicates_decides() -> None:
    decision = decide(BEFORE, seen(), policy(), comparisons=21, explained=(-0.2, 0.0))
    assert (decision.status, decision.missing_replicates) == (Status.UNDECIDED, None)
    assert decision.explained  # by the machine, and not by the noise between processes


def test_what_is_undecided_for_its_noise_alone_is_not_laid_on_the_machine() -> None:
    for explained in ((0.0, 0.0), (-0.02, 0.02)):
        decision = decide(BEFORE, seen(), policy(process=NOISY), comparisons=21, explained=explained)
        assert (decision.status, decision.explained) == (Status.UNDECIDED, False)


# -- a second look --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "suspicious"), [(1.0, False), (1.004, False), (1.006, True), (0.994, True), (1.02, True), (0.98, True)]
)
def test_a_change_beyond_half_of_the_tolerance_is_worth_a_second_look(factor: float, suspicious: bool) -> None:
    assert decided(factor).suspicious is suspicious


def test_a_change_within_the_noise_is_not_worth_a_second_look() -> None:
    decision = decided(1.006, process=Prior(0.01))
    assert (decision.status, decision.suspicious) == (Status.PASS, False)


def test_what_more_replicates_would_decide_is_worth_a_second_look() -> None:
    decision = with_more(0, factor=1.0, spread=0.15, replicates=4)
    assert (decision.status, decision.suspicious) == (Status.UNDECIDED, True)
    assert decision.missing_replicates


def test_what_no_number_of_replicates_decides_is_not() -> None:
    decision = decided(1.0, process=NOISY)
    assert (decision.status, decision.suspicious) == (Status.UNDECIDED, False)
    assert decision.missing_replicates is None


def test_a_machine_that_explains_a_change_is_worth_a_second_look() -> None:
    """It may be itself again."""
    for factor, explained in ((1.02, (0.0, 0.05)), (1.0, (-0.15, 0.0))):  # a slowdown, or one that it may hide
        decision = decide(BEFORE, seen(200 * factor), policy(), comparisons=21, explained=explained)
        assert (decision.status, decision.suspicious) == (Status.UNDECIDED, True)
        assert decision.missing_replicates is None


# -- how many replicates would decide -------------------------------------------------------------------------------


def with_more(more: int, *, factor: float, spread: float, replicates: int) -> Decision:
    return decide(BEFORE, seen(200 * factor, spread=spread, replicates=replicates + more), policy(), comparisons=21)


@pytest.mark.parametrize("factor", [1.0, 1.05, 1.099, 1.15, 0.97])
@pytest.mark.parametrize("spread", [0.15, 0.5])
@pytest.mark.parametrize("replicates", [2, 4, 12])
def test_as_many_replicates_as_are_said_to_be_missing_decide_and_one_less_does_not(
    factor: float, spread: float, replicates: int
) -> None:
    measured = {"factor": factor, "spread": spread, "replicates": replicates}
    missing = with_more(0, **measured).missing_replicates  # type: ignore[arg-type]
    assert missing is not None
    assert with_more(missing, **measured).status is not Status.UNDECIDED  # type: ignore[arg-type]
    assert with_more(missing - 1, **measured).status is Status.UNDECIDED  # type: ignore[arg-type]


def test_a_slowdown_in_noisy_replicates_would_be_decided_by_more_of_them() -> None:
    measured: dict[str, Any] = {"factor": 1.3, "spread": 0.5, "replicates": 4}
    missing = with_more(0, **measured).missing_replicates
    assert missing is not None
    assert with_more(missing, **measured).status is Status.REGRESSED


def test_where_the_noise_lies_between_processes_no_number_of_replicates_decides() -> None:
    decision = decided(1.0, process=NOISY)
    assert (decision.status, decision.missing_replicates) == (Status.UNDECIDED, None)
    plenty = decide(BEFORE, seen(replicates=10**7), policy(process=NOISY), comparisons=21)
    assert plenty.status is Status.UNDECIDED


def test_of_a_decision_no_replicates_are_missing() -> None:
    for factor in (0.9, 1.0, 1.1):
        assert decided(factor).missing_replicates is None
