"""The steps of a trace beside those of a baseline, without a file."""

from collections import Counter
from collections.abc import Sequence

import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.evidence import Cause
from kernelgauge.trace.steps import StepRow, Steps, StepTrace
from tests.builders import judged_steps, steps_baseline

GEMM = StepRow("", "", "aten::mm", "gemm", "gemm")


def job(
    communication_us: float = 15e3,
    exposed_us: float = 11e3,
    compute_us: Sequence[float] = (1e4,) * 4,
) -> dict[int, StepTrace]:
    """A run of one rank, four steps unless more are given."""
    count = len(compute_us)
    steps = Steps(
        [Counter({GEMM: 1})] * count,
        Counter({GEMM: sum(compute_us)}),
        [2e4] * count,
        [*compute_us],
        [communication_us] * count,
        [exposed_us] * count,
        [4] * count,
    )
    steps.row_squares[GEMM] = sum(us**2 for us in compute_us)
    return {0: StepTrace(0, 1, "NVIDIA H200", (0.0, 1.0), "", {"": steps}, {}, ())}


@pytest.mark.parametrize(
    ("communication_us", "exposed_us", "status"),
    [
        (15e3, 14.8e3, Status.REGRESSED),
        (6e3, 5.9e3, Status.PASS),  # there is less to wait for
    ],
)
def test_lost_overlap_is_a_loss_if_more_is_exposed(
    communication_us: float, exposed_us: float, status: Status
) -> None:
    verdicts = judged_steps(job(communication_us, exposed_us), steps_baseline([job(15e3, 11e3)]))
    assert [each.status for each in verdicts if each.subject == "communication"] == [status]


STEADY = [1e4 * (1 + 0.002 * (number % 3)) for number in range(8)]


@pytest.mark.parametrize(("every", "status"), [(2, Status.REGRESSED), (8, Status.PASS)])
def test_slower_steps_are_a_loss_unless_by_chance(every: int, status: Status) -> None:
    """Their scatter is none of the baseline's, and excuses nothing."""
    after = [us * (1.3 if number % every == 0 else 1) for number, us in enumerate(STEADY)]
    baseline = steps_baseline([job(compute_us=STEADY)] * 3)
    (verdict,) = (
        each for each in judged_steps(job(compute_us=after), baseline) if "GPU" in each.subject
    )
    assert verdict.status is status
    named = [each for each in verdict.reasons if isinstance(each, Cause)]
    assert bool(named) == (status is Status.REGRESSED)
