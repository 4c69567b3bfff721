"""`kernelgauge judge`: is a candidate correct, and how much faster than its reference? It may do what it likes to win."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import CandidateRefused, KernelgaugeError, MeasurementError
from ..judge import Status
from ..judge.two_sets import decide_contest, over_cases
from . import Commands, Exit, add_command, note, say

if TYPE_CHECKING:
    from ..judge.timing import Decision
    from ..measure.contest import Contest

_SPEEDS = {Status.IMPROVED: "faster", Status.REGRESSED: "slower", Status.PASS: "as fast", Status.UNDECIDED: "unclear"}


def add_commands(commands: Commands) -> None:
    about = "judge a candidate beside a reference: is it correct, and is it faster"
    description = (
        "Check a candidate against a reference on inputs that nobody can know, and time both on a clock that the candidate "
        "cannot reach. Each is FILE.py[:NAME] or module:NAME."
    )
    parser = add_command(commands, "judge", _judge, about, description)
    parser.epilog = "Exits with 0 if the candidate is correct, whatever its speed, and 1 if it is refused."
    parser.add_argument("candidate", metavar="CANDIDATE")
    parser.add_argument(
        "--against", required=True, metavar="REFERENCE", help="a function or nn.Module, with its inputs"
    )
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one"
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")


def judge_candidate(candidate: str, against: str, *, device: str = "auto") -> dict[str, Any]:
    """Judge a candidate, as `kernelgauge judge --json` does, in a process of its own. Return the verdict.

    Raises `KernelgaugeError` if there is no verdict, as for a reference that fails.
    """
    arguments = [
        sys.executable,
        "-m",
        "kernelgauge",
        "judge",
        candidate,
        "--against",
        against,
        "--device",
        device,
        "--json",
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in (Exit.YES, Exit.NO):
        raise MeasurementError("there is no verdict", got=done.stderr.strip()[-2000:])
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


def _judge(options: argparse.Namespace) -> Exit:
    from ..measure.contest import hold_contest
    from ..measure.device import choose_device

    try:
        contest = hold_contest(options.candidate, options.against, choose_device(options.device), note)
    except CandidateRefused as refusal:
        if options.json:
            wrong = None if refusal.wrong is None else msgspec.to_builtins(refusal.wrong)
            say(_json({"correct": False, "refused": refusal.what, **dict(refusal.details), "first_wrong": wrong}))
        else:
            say(f"REFUSED  {refusal}" + (f"\n  {_wrong(refusal.wrong)}" if refusal.wrong else ""))
        return Exit.NO
    is_cpu = contest.is_cpu
    sides = [over_cases([getattr(each, side) for each in contest.cases]) for side in ("reference", "candidate")]
    overall = decide_contest(*sides, is_cpu=is_cpu)
    cases = [decide_contest(each.reference, each.candidate, is_cpu=is_cpu) for each in contest.cases]
    if options.json:
        say(_json(_data(contest, overall, cases)))
    else:
        say("\n".join(_lines(contest, overall, cases)))
    return Exit.YES


def _json(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def _wrong(wrong: Any) -> str:
    place = f"{wrong.output or 'result'}[{', '.join(map(str, wrong.index))}]"
    return f"{place} is {wrong.got:g}, expected {wrong.expected:g} +- {wrong.allowed:.1g}"


def _decision(decision: Decision) -> dict[str, Any]:
    change = decision.change
    # A time of 0.8 is a speed-up of 1.25.
    ends = [None if each is None else 1 / (1 + each) for each in (change.high, change.low)]
    return {
        "speed": _SPEEDS[decision.status],
        "speedup": 1 / (1 + change.estimate),
        "interval": ends,
        "confidence": change.confidence,
        "reference_us": decision.before_us,
        "candidate_us": decision.after.observation.mean_us,
    }


def _data(contest: Contest, overall: Decision, cases: Sequence[Decision]) -> dict[str, Any]:
    return {
        "correct": True,
        "faster": overall.status is Status.IMPROVED,
        **_decision(overall),
        "checked_calls": contest.checked_calls,
        "checked_values": contest.values,
        "through_host": contest.through_host,
        "cases": [
            {
                "case": times.case,
                **_decision(decision),
                "calls_in_a_batch": times.calls,
                "input_bytes": times.input_bytes,
                "output_bytes": times.output_bytes,
                "floor_us": times.floor_us,
                "reference_processes_us": [each.replicates_us for each in times.reference],
                "candidate_processes_us": [each.replicates_us for each in times.candidate],
            }
            for times, decision in zip(contest.cases, cases, strict=True)
        ],
    }


def _lines(contest: Contest, overall: Decision, cases: Sequence[Decision]) -> list[str]:
    lines = [f"CORRECT  {contest.checked_calls} calls, each checked, on inputs: {', '.join(contest.values)}"]
    for name, each in [("", overall), *((it.case, found) for it, found in zip(contest.cases, cases, strict=True))]:
        found = _decision(each)
        low, high = ("?" if end is None else f"{end:.3f}" for end in found["interval"])
        times = f"{found['reference_us']:.1f} -> {found['candidate_us']:.1f} us"
        head = f"  {name:<20}" if name else f"{found['speed'].upper():<9}"
        lines.append(
            f"{head}{times}   {found['speedup']:.3f} x ({low} ... {high})" + (f"  {found['speed']}" if name else "")
        )
    if contest.through_host:
        lines.append("Times hold copies through the host: this machine has no CUDA IPC.")
    return lines
