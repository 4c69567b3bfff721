"""Why a workload failed on some machines of a fleet, as far as the other machines tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from ..judge import RelativeChange, Status, Verdict
from ..judge.fingerprint import SOFTWARE_FIELDS
from ..results import WorkloadResult
from .machines import Machine

__all__ = ["Cause", "Conclusion", "concluded", "concluded_of_all"]

Seen = tuple[Machine, WorkloadResult]

# Two slowdowns are alike if neither is more than twice the other: one change of code costs GPUs of a kind about the same.
_ALIKE = 2.0
_MOST_KERNELS = 3


class Cause(str, Enum):
    """Where to look first."""

    SOFTWARE = "a difference of software"
    BUILD = "the build"
    KIND = "this kind of GPU"
    HOST = "this host"
    GPU = "this GPU"
    MIXED = "mixed"


@dataclass(frozen=True)
class Conclusion:
    """`evidence`: one line each, what separates the machines first."""

    cause: Cause
    evidence: tuple[str, ...]


def concluded(seen: Sequence[Seen]) -> Conclusion | None:
    """Of one workload; None if it failed nowhere."""
    failing = [(machine, result) for machine, result in seen if result.status is not None and result.status.fails]
    if not failing:
        return None
    regressed = [(machine, result) for machine, result in failing if result.status is Status.REGRESSED]
    passed = [machine for machine, result in seen if result.status in (Status.PASS, Status.IMPROVED)]
    if passed:
        return _separated([machine for machine, _ in failing], passed)
    if not regressed:
        return Conclusion(Cause.MIXED, ("no GPU could measure it",))
    if len({machine.place for machine, _ in regressed}) < 2:
        return Conclusion(Cause.MIXED, (f"only {regressed[0][0].name} could decide: there is nothing to compare with",))
    if not all(_alike(one, other) for (_, one), (_, other) in combinations(regressed, 2)):
        return Conclusion(Cause.MIXED, (f"{_machines(regressed)} are slower, but not alike",))
    return Conclusion(Cause.BUILD, (f"{_machines(regressed)} are slower alike", *_kernels(regressed)))


def concluded_of_all(failing: Sequence[tuple[str, Conclusion]], machines: Sequence[Machine]) -> Conclusion:
    """Of all workloads that failed: one cause if they have one, else what each of them says."""
    causes = {conclusion.cause for _, conclusion in failing}
    bad = [machine for machine in machines if machine.fails]
    good = [machine for machine in machines if machine.passes]
    if causes == {Cause.BUILD}:
        first = f"every GPU that could decide is slower alike: {_some([name for name, _ in failing])}"
        kernels = dict.fromkeys(line for _, conclusion in failing for line in conclusion.evidence[1:])
        return Conclusion(Cause.BUILD, (first, *kernels, *_control_pairs(machines)))
    if Cause.MIXED not in causes and Cause.BUILD not in causes and good:
        whole = _separated(bad, good)
        enough = len(failing) > 1 or any(machine.is_slower for machine in bad)
        if whole.cause is Cause.GPU and not enough:
            once = f"one workload on {bad[0].name}, whose reference kernels says nothing: measure it there again"
            return Conclusion(Cause.MIXED, (*whole.evidence, once, *_control_pairs(machines)))
        if whole.cause is not Cause.MIXED:
            return Conclusion(whole.cause, (*whole.evidence, *_control_pairs(machines)))
    return Conclusion(Cause.MIXED, (*_by_cause(failing), *_control_pairs(machines)))


def _separated(failing: Sequence[Machine], passed: Sequence[Machine]) -> Conclusion:
    """What those that fail have in common, and those that pass have not."""
    kinds = {machine.device for machine in failing}
    alike = [machine for machine in passed if machine.device in kinds]
    if not alike:
        others = _some(sorted({machine.device for machine in passed}))
        return Conclusion(Cause.KIND, (f"it fails on {_some(sorted(kinds))}, and passes on {others}",))
    software = tuple(_differences(failing, alike))
    if software:
        return Conclusion(Cause.SOFTWARE, software)
    said = f"it fails on {_some([machine.name for machine in failing])}, and passes on {_some([m.name for m in alike])}"
    if len({machine.place for machine in failing}) == 1:
        return Conclusion(Cause.GPU, (said,))
    hosts = {machine.host for machine in failing}
    if len(hosts) == 1 and "" not in hosts and not any(machine.host in hosts for machine in alike):
        return Conclusion(Cause.HOST, (said,))
    return Conclusion(Cause.MIXED, (said,))


def _differences(failing: Sequence[Machine], passed: Sequence[Machine]) -> Iterator[str]:
    """Software of which those that fail have no version that those that pass have."""
    for field in ("commit", *SOFTWARE_FIELDS):
        bad, good = _versions(field, failing), _versions(field, passed)
        if bad and good and not bad & good:
            yield f"{field} {_some(sorted(bad))} where it fails, {_some(sorted(good))} where it passes"


def _versions(field: str, machines: Sequence[Machine]) -> set[str]:
    """Empty where one of them is not known: then it separates nothing."""
    values = [
        machine.commit if field == "commit" else getattr(machine.fingerprint, field, None) for machine in machines
    ]
    return set() if None in values else {str(value) for value in values}


def _alike(one: WorkloadResult, other: WorkloadResult) -> bool:
    """Whether the same is slower, by about as much, in the same kernels as far as they are named."""
    common = [(first, second) for first in _regressed(one) for second in _regressed(other)]
    common = [(first, second) for first, second in common if first.subject == second.subject]
    named = set(_named(one)), set(_named(other))
    if not common or (all(named) and not named[0] & named[1]):
        return False
    return all(_as_much(first.change, second.change) for first, second in common)


def _as_much(one: RelativeChange | None, other: RelativeChange | None) -> bool:
    if one is None or other is None:
        return one is other  # what is exact has no size
    small, large = sorted((one.estimate, other.estimate))
    if 0 < large <= _ALIKE * small:
        return True
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _regressed(result: WorkloadResult) -> list[Verdict]:
    return [verdict for verdict in result.verdicts if verdict.status is Status.REGRESSED]


def _named(result: WorkloadResult) -> list[str]:
    """Kernels that the reasons of a slower device time begin with."""
    kernels = {kernel.identity.shown for kernel in (result.run.kernels if result.run is not None else ())}
    heads = (reason.text.partition("  ")[0] for verdict in _regressed(result) for reason in verdict.reasons)
    return list(dict.fromkeys(head for head in heads if head in kernels))


def _kernels(seen: Sequence[Seen]) -> Iterator[str]:
    everywhere = [set(_named(result)) for _, result in seen]
    common = [name for name in _named(seen[0][1]) if all(name in names for names in everywhere)]
    if common:
        yield f"the same kernels on each: {_some(common, _MOST_KERNELS)}"


def _control_pairs(machines: Sequence[Machine]) -> Iterator[str]:
    slower = [machine for machine in machines if machine.is_slower]
    for machine in slower:
        yield f"reference kernels of {machine.name} against the median of its kind: {_shown(machine.among)}"
    if not slower and any(machine.among for machine in machines):
        yield "no GPU's reference kernels are slower than those of its kind"


def _shown(changes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * change:+.1f} %" for name, change in changes.items())


def _by_cause(failing: Sequence[tuple[str, Conclusion]]) -> Iterator[str]:
    for cause in Cause:
        names = [name for name, conclusion in failing if conclusion.cause is cause]
        if names:
            lines = dict.fromkeys(line for _, each in failing if each.cause is cause for line in each.evidence[:1])
            yield f"{cause.value}: {_some(names)}: {_some(list(lines), 1)}"


def _machines(seen: Sequence[Seen]) -> str:
    return _some([machine.name for machine, _ in seen])


def _some(names: Sequence[str], most: int = 4) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")
