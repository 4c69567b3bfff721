"""What is exact: kernels and counts of a run against what its workload declares and against its
baseline.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, pairwise, zip_longest
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..errors import WorkloadError
from ..run import Counts, Fingerprint, KernelChoice, Run, recorded_choice
from ..trace import (
    FACTS,
    Difference,
    KernelRecord,
    Kind,
    configuration_change,
    decode,
    has_worse_code,
    is_dispatched,
)
from . import STRUCTURE, Status, Verdict
from .baseline import Baseline, compare_fingerprints, count_changes, other_data
from .cause import at_edited_lines, compare_launches, find_causes
from .evidence import (
    PLACED,
    ChoiceMoved,
    CountMoved,
    KernelMoved,
    Mismatch,
    NotCompared,
    OtherPlacement,
    StructureCompared,
)
from .host import is_host_loss, work_total

# what calls compiled code, by whether a compile cache had it
_OF_COMPILER = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")
_FORMS = {"arch": r"sm_\d+[af]?|gfx[0-9a-f]+|gpu|cpu", "cuda": r"\d+\.\d+"}


@dataclass(frozen=True)
class Expectation:
    """What one workload shows where `arch`, `cuda` and `torch` hold. Fields left None expect
    nothing.

    Raises `WorkloadError` for a value that can never hold, so that nothing would be checked.

    Attributes: source: where it was seen, for the failure message. arch: ``sm_90``, ``sm_80``, ...;
        ``gpu`` for any GPU; ``cpu``; None for anything. cuda: CUDA version that the names hold for
        (cuBLAS ships with it); None for any. kinds: what each launch does, in order: ``gemm``,
        ``pointwise``, ... (`kernelgauge.trace.Kind`). names: name of each launch, in order: exact,
        or an `fnmatch` pattern. memsets: memsets per call. launch_apis: the host call behind each
        launch, in order: exact, or an `fnmatch` pattern. occupancy_queries: occupancy queries per
        call. torch: versions that the names hold for (Inductor names its kernels), such as
        ``>=2.7,<2.9``; None for any.
    """

    source: str
    arch: str | None = None
    cuda: str | None = None
    kinds: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    memsets: int | None = None
    launch_apis: tuple[str, ...] | None = None
    occupancy_queries: int | None = None
    torch: str | None = None

    def __post_init__(self) -> None:
        __tracebackhide__ = True  # pytest ends the traceback at the suite's own line
        invalid = [
            what
            for what in ("kinds", "names", "launch_apis")
            if isinstance(getattr(self, what), str)
        ]
        known = [kind.value for kind in Kind]
        if not all(any(_matches(kind, each) for kind in known) for each in self.kinds or ()):
            invalid.append("kinds")
        given = {what: value for what in _FORMS if (value := getattr(self, what)) is not None}
        invalid += [
            what for what, value in given.items() if not re.fullmatch(_FORMS[what], str(value))
        ]
        try:
            SpecifierSet(str(self.torch or ""))
        except InvalidSpecifier:
            invalid.append("torch")
        for what in invalid:
            expected = {
                "kinds": f"a tuple of {', '.join(known)}",
                "arch": "sm_90, gfx942, ..., gpu or cpu",
                "cuda": "a version, such as '13.0'",
                "torch": "versions, such as '>=2.7,<2.9' or '==2.13.*'",
            }.get(what, "a tuple of names or patterns")
            raise WorkloadError(
                f"invalid {what} of an Expectation",
                where=self.source,
                got=repr(getattr(self, what)),
                expected=expected,
            )

    def holds_for(self, fingerprint: Fingerprint) -> bool:
        archs = (None, fingerprint.arch, *(() if fingerprint.arch == "cpu" else ("gpu",)))
        torch = SpecifierSet(self.torch or "", prereleases=True)  # nightly builds are prereleases
        return (
            self.arch in archs
            and self.cuda in (None, fingerprint.cuda)
            and fingerprint.torch in torch
        )


def mismatches(expectation: Expectation, run: Run) -> list[Mismatch]:
    """Return every way in which `run` is not as expected; empty if it is."""
    found: list[Mismatch] = []
    for what, got, patterns in (
        ("kernel kinds", run.kinds(), expectation.kinds),
        ("kernel names", run.kernel_names(), expectation.names),
        ("launch calls", run.launch_apis, expectation.launch_apis),
    ):
        pairs = list(zip_longest(got, patterns or ()))
        if patterns is not None and not all(_matches(*pair) for pair in pairs):
            shown = [decode(name).short for name in got] if what == "kernel names" else got
            wanted = [None if _matches(*pair) else pair[1] or "" for pair in pairs]
            launches = tuple(zip_longest(shown, wanted, fillvalue=""))
            found.append(Mismatch(what, len(got), len(patterns), expectation.source, launches))
    for what, count, expected in (
        ("memsets", run.counts.memsets, expectation.memsets),
        ("occupancy queries", run.occupancy_queries, expectation.occupancy_queries),
    ):
        if expected is not None and count != expected:
            found.append(Mismatch(what, count, expected, expectation.source))
    return found


def _matches(name: str | None, pattern: str | None) -> bool:
    return (
        name is not None and pattern is not None and (name == pattern or fnmatchcase(name, pattern))
    )


# More of these beside other kernels is a loss of time alone: where times improved, there is none.
_IN_LATENCY = ("dispatcher_ops", "host_work")
# One launch fewer pays for so many: it takes 5.5 us of an H200's host, and an op without one 1.2
# (tests/data/h200/mlp-liger-train.json.gz, medians).
_OPS_OF_A_LAUNCH = 5


def judge_structure(run: Run, baseline: Baseline, times: Sequence[Verdict] = ()) -> Verdict:
    """Compare kernels (names, order, number of launches, shapes, streams) and every count exactly.

    The launch configuration counts too, unless an autotuner chose it anew: none was stored, or
    `--perf-tune` asked for that. More of anything counted is REGRESSED, but for ops that wrap
    others, and for ops and host work of other kernels that are faster, or ops of fewer launches. So
    is other structure where a time is REGRESSED. Other structure without such a loss is CHANGED.
    Lower counts of the same kernels, and none higher, are IMPROVED where every time was judged and
    none is worse, else PASS, unless less is compiled or in CUDA graphs. Where torch is another
    version than in the baseline, dispatcher ops and memory are shown and not judged.

    Args:
        times: verdicts on the times of the run; none: it was not timed.
    """
    comparison = compare_fingerprints(baseline.fingerprint, run.fingerprint)
    if comparison.foreign:
        return Verdict(Status.INCOMPARABLE, run.workload, STRUCTURE, NotCompared(comparison.moves))
    run = at_edited_lines(run, baseline)
    found = compare_launches(baseline, baseline.kernels, run)
    choices = choice_changes(baseline, run)
    kernels = kernel_changes(found, _chosen_anew(baseline, run, choices))
    others = {move.name for move in comparison.moved}
    old, new = baseline.counts, run.counts
    moved = count_changes(old, new)
    if not (run.samples or moved.get("recompiles")):  # without times it makes fewer calls
        moved.pop("recompiles", None)
    losses = count_changes(old, new, others)
    losses = {name: is_loss for name, is_loss in losses.items() if name in moved}
    counts = [
        CountMoved(each, getattr(old, each), getattr(new, each), is_judged=each in losses)
        for each in moved
    ]
    if losses.get("dispatcher_ops") and baseline.ops and _only_wraps(run, baseline):
        del losses["dispatcher_ops"]
    if host := is_host_loss(baseline, run):
        losses |= host
        counts.append(
            CountMoved("host_work", work_total(baseline.host_work), work_total(run.host_work))
        )
    data = other_data(baseline.data, run.data)
    placed = placement_changes(found, run.fingerprint, data)
    lost = [each for each in choices if each.is_lost]
    if not (kernels or placed or losses or lost):
        facts = (*choices, *counts)
        return Verdict(Status.PASS, run.workload, STRUCTURE, StructureCompared(), facts)
    is_same_work = not (kernels or placed or lost)
    is_note = losses == {"compiled_ops": True} and is_same_work and _are_same_sources(found)
    is_less = {*losses.values()} == {False} and is_same_work
    # what left a CUDA graph or the compiler runs by itself
    is_less &= not ("compiled_ops" in losses and run.counts.compiled_ops == 0)
    is_less &= "graph_launches" not in losses
    statuses = {each.status for each in times}
    are_times_good = bool(times) and statuses <= {Status.PASS, Status.IMPROVED}
    is_faster = are_times_good and Status.IMPROVED in statuses
    paid = _paid(old, new, is_faster=is_faster) if kernels else ()
    status = Status.CHANGED
    if is_note:
        status = Status.PASS
    elif Status.REGRESSED in statuses or any(
        is_loss and name not in paid for name, is_loss in losses.items()
    ):
        status = Status.REGRESSED
    elif are_times_good and is_same_work and False in losses.values():
        status = Status.IMPROVED
    elif is_less:
        status = Status.PASS
    is_other = any(None in (each.before, each.after) for each in kernels)
    what = ("kernels" if is_other else "configurations") if kernels or lost else ""
    causes = find_causes(run, baseline, found, is_timed=False)
    conclusion = StructureCompared(what, tuple(placed))
    facts = (*choices, *causes, *counts, *kernels)
    return Verdict(status, run.workload, STRUCTURE, conclusion, facts)


def other_code(run: Run, baseline: Baseline) -> str:
    """Return what may be other code than a baseline's: kernels or their arguments, Python functions,
    libraries or driver; empty: it has the same. What one side does not know counts as different.
    """
    if run.fingerprint != baseline.fingerprint:
        return "other software or hardware"
    work = {**baseline.host_work, **run.host_work}
    is_same_host = bool(work) and all(
        name in baseline.host_spread
        or name.startswith(_OF_COMPILER)
        or baseline.host_work.get(name) == run.host_work.get(name)
        for name in work
    )
    verdict = judge_structure(run, baseline)
    is_moved = any(isinstance(each, CountMoved) for each in verdict.reasons)
    if verdict.status is not Status.PASS or is_moved:
        return "other structure"
    found = compare_launches(baseline, baseline.kernels, run)
    if not all(_is_same_kernel(*pair) for each in found for pair in each.pairs):
        return "kernels whose code is other or not known"
    if not (run.functions and baseline.functions):
        return "its Python functions are not known"
    return "" if is_same_host and run.functions == baseline.functions else "other Python functions"


def _paid(old: Counts, new: Counts, *, is_faster: bool) -> Collection[str]:
    """Return the counts of which other kernels may have more."""
    more_ops = (new.dispatcher_ops or 0) - (old.dispatcher_ops or 0)
    is_launched_less = more_ops <= _OPS_OF_A_LAUNCH * (old.launches - new.launches)
    return _IN_LATENCY if is_faster else _IN_LATENCY[:1] if is_launched_less else ()


def _only_wraps(run: Run, baseline: Baseline) -> bool:
    """Tell whether the ops that a run has and its baseline lacks wrap others, as `reshape` wraps
    `view`: what they do is in the count of those.
    """
    ops = [each for each in run.ops if is_dispatched(each.name)]
    more = Counter(each.name for each in ops) - Counter(baseline.ops)
    # which of two inner ops is around the other is not known
    wrappers = {one.name for one, other in pairwise(ops) if other.is_inner and not one.is_inner}
    others = zip_longest(ops, ops[1:])
    leaves = {one.name for one, other in others if one.is_inner or not (other and other.is_inner)}
    return more.keys() <= wrappers - leaves


def _is_same_kernel(old: KernelRecord, new: KernelRecord) -> bool:
    if old.identity != new.identity or old.resources != new.resources:
        return False
    is_of_torch = (new.op or new.identity.name).startswith("aten::")
    code = new.identity.source_hash or (new.resources and new.resources.code)
    return bool(code) or is_of_torch


def _are_same_sources(found: Iterable[Difference]) -> bool:
    """Tell whether a compiler made the same kernels: what it was given besides did not reach the
    device.
    """
    for old, new in chain.from_iterable(each.pairs for each in found):
        if old.identity.decoded.backend.startswith("inductor"):
            sides = [
                (each.identity.source_hash, each.resources and each.resources.code)
                for each in (old, new)
            ]
            if not any(one is not None and one == other for one, other in zip(*sides, strict=True)):
                return False
    return True


def placement_changes(
    found: Iterable[Difference], gpu: Fingerprint, data: Mapping[str, OtherPlacement] | None = None
) -> list[str]:
    """Return what of `PLACED` differs between the same kernels. `data`: what differs in that of
    their ops.

    "compiled code": it spills and did not, or fills less of the GPU. All else in it may change.
    """
    pairs = [pair for each in found if each.what.is_pair for pair in each.pairs]
    placed = {
        name
        for name, differ in FACTS.items()
        if any(any(map(bool, differ(*pair))) for pair in pairs)
    }
    placed |= {"arguments"} if data else set()
    if any(has_worse_code(*pair, gpu.arch, gpu.sm_count) for pair in pairs):
        placed.add("compiled code")
    return [name for name in PLACED if name in placed]


def choice_changes(baseline: Baseline, run: Run) -> list[ChoiceMoved]:
    """Return the choices of autotuners that are others than in a baseline."""
    found: list[ChoiceMoved] = []
    for each in run.choices:
        stored = recorded_choice(baseline.choices_to_replay(), each.kernel, each.key, each.source)
        if not each.config:
            found += uncompiled(each, set() if stored is None else stored.runnable)
            continue
        before = stored.config if stored is not None else each.recorded or each.config
        if before != each.config:
            old, new = map(each.times_us.get, (before, each.config))
            gain = 1 - new / old if old and new else None
            lost = (bool(each.recorded), each.error)
            found.append(ChoiceMoved(each.kernel, before, each.config, *lost, gain))
    return found


def _chosen_anew(baseline: Baseline, run: Run, moved: Iterable[ChoiceMoved]) -> set[str]:
    """Return the kernels whose autotuner had no choice to take, or was asked to choose anew."""
    known = baseline.choices_to_replay()
    chosen = {each.kernel for each in moved if not each.is_lost}
    return chosen | {
        each.kernel
        for each in run.choices
        if recorded_choice(known, each.kernel, each.key, each.source) is None
    }


def uncompiled(choice: KernelChoice, could: Iterable[str]) -> list[ChoiceMoved]:
    """Return the first configuration that does not compile for a GPU that is not here, of those
    that could.
    """
    counts, lost = (len(choice.runnable), len(choice.times_us)), set(could) - choice.runnable
    facts: dict[str, Any] = {"is_lost": True, "compiled": counts}
    return [
        ChoiceMoved(
            choice.kernel, name, "", error=choice.error * (name in choice.times_us), **facts
        )
        for name in sorted(lost)[:1]
    ]


def kernel_changes(found: Iterable[Difference], chosen: Collection[str] = ()) -> list[KernelMoved]:
    """Return each kernel that is gone, new or launched in another configuration.

    `chosen`: kernels whose configuration may differ, since an autotuner chose it anew.
    """
    moved: list[KernelMoved] = []
    for each in found:
        if each.what.is_pair:
            moved += [
                KernelMoved(old.identity.shown, new.identity.shown, configuration)
                for old, new in each.pairs
                if new.identity.unnumbered not in chosen
                if (configuration := configuration_change(old.identity, new.identity))
            ]
        else:
            moved += [KernelMoved(kernel.identity.shown, None) for kernel in each.before]
            moved += [KernelMoved(None, kernel.identity.shown) for kernel in each.after]
    return moved
