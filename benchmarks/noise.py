"""Fit what the rule for times expects of unchanged code to every recorded process. Needs no GPU.

    python benchmarks/noise.py                    print the fit, and whether noise.json has it
    python benchmarks/noise.py --write            write src/kernelgauge/judge/noise.json
    python benchmarks/noise.py --without-hosts 3  fit without every third host, and judge those

Spreads are standard deviations of logarithms of times; docs/design/times.md says what each number
is for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean, stdev
from typing import Any

import msgspec
import numpy as np
import unchanged
from recorded import (
    ROOT,
    Suite,
    baseline_of,
    busy_suites,
    h100_suites,
    later_suites,
    model_suites,
    recorded_suites,
    side_by_side_suites,
)
from scipy import optimize, stats

from kernelgauge.judge import timing
from kernelgauge.judge.baseline import from_run, gemm_kernel
from kernelgauge.judge.time_verdict import Context, followed_reference
from kernelgauge.judge.timing import COPY, GEMM, NOTHING, SLOPES, TWINS
from kernelgauge.run import (
    CALL_TIMERS,
    MEASURED_GPUS,
    ProcessTime,
    Run,
    Timer,
    observe,
    on_same_host,
)
from kernelgauge.trace.difference import are_alike

FILE = ROOT / "src" / "kernelgauge" / "judge" / "noise.json"
# from here on, the resolution of the profiler is the smaller part of a GPU time's spread
_LONG_US = 20.0
_TRAINS = ("-train-", "-step-")  # in the ids of the recorded workloads
# The kinds of times that are fitted apart.
GPU, DISPATCH, TRAINING, LATENCY = "GPU time", "dispatch", "dispatch of a training step", "latency"
_QUANTILES = (np.arange(200) + 0.5) / 200  # of the factor of a machine


@dataclass(frozen=True)
class Group:
    """Times of one workload, in one launch configuration, on one GPU: its variance, degrees of
    freedom and kernels.
    """

    gpu: str
    workload: str
    variance: float
    dof: int
    kernels: int
    us: float
    own: float  # the variance of a mean that its replicates show
    rest: float = 0.0  # a part of the variance that is not fitted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write noise.json")
    parser.add_argument("--without-hosts", type=int, metavar="N", help="leave out every N-th host")
    options = parser.parse_args()
    suites = recorded_suites()
    if options.without_hosts:
        hosts = sorted({each.host for each in suites})[:: options.without_hosts]
        found = fit([each for each in suites if each.host not in hosts])
        judge_left_out(found, suites, hosts)
        return
    found = fit(suites)
    shown = json.dumps(found, indent=2)
    print(shown)
    print_spreads(suites)
    print_hosts([*suites, *(each for side in busy_suites() for each in side)])
    print_nights(found[DISPATCH]["night"])
    if options.write:
        FILE.write_text(shown + "\n")
    elif json.loads(FILE.read_text()) != found:
        print(f"{FILE.relative_to(ROOT)} has other numbers")


def fit(suites: Sequence[Suite]) -> dict[str, dict[str, Any]]:
    """Return the fitted numbers by kind of time."""
    busy, known = busy_suites()
    others = [*h100_suites(), *model_suites(), *busy, *known]
    gpu = list(groups([*suites, *others], Timer.DEVICE))
    long, short = ([each for each in gpu if (each.us > _LONG_US) is side] for side in (True, False))
    process, dof = common_factor(long, "GPU times of more than 20 us")
    of_kernels = [_of_kernels(each, process) for each in short]
    resolution, resolution_dof = common_factor(
        of_kernels, "resolution of a kernel, in us", by="workload"
    )
    print_slopes(suites)

    def within(us: float, kernels: int) -> float:
        return process**2 + kernels * (resolution / us) ** 2

    copy, kernel = beyond_the_copy([*suites, *model_suites()], within)
    elsewhere = between_hosts(suites, within, kernel) | {COPY: copy}
    hosts = len({each.host for each in suites}) - 1
    dispatch = list(groups([*suites, *others], Timer.HOST))
    trains, rest = (
        [each for each in dispatch if is_training(each.workload) is side] for side in (True, False)
    )
    of_dispatch = between_nights(suites, Timer.HOST, common_factor(rest, DISPATCH)[0])
    found: dict[str, dict[str, Any]] = {
        GPU: {
            "process": process,
            "dof": dof,
            # Five GPUs, of two nights each, show none. Five prove little: it is taken to be as
            # large as that of dispatch.
            "night": max(between_nights(suites, Timer.DEVICE, process), of_dispatch),
            "resolution_us": resolution,
            "resolution_dof": resolution_dof,
            "step_us": kernel_step(),
            "elsewhere": elsewhere,
            "kernel_us": kernel,
            "hosts": hosts,
        }
    }
    for kind, each, timer in (
        (DISPATCH, rest, Timer.HOST),
        (TRAINING, trains, Timer.HOST),
        (LATENCY, list(groups([*suites, *others], Timer.END_TO_END)), Timer.END_TO_END),
    ):
        process, dof = common_factor(each, kind)
        found[kind] = {"process": process, "dof": dof}
        if kind != TRAINING:
            found[kind]["night"] = between_nights(suites, timer, process)
        if kind == DISPATCH:
            found[kind] |= {"elsewhere": between_hosts_by_ratio(suites, process), "hosts": hosts}
    return {
        kind: {name: _rounded(value) for name, value in each.items()}
        for kind, each in found.items()
    }


def _rounded(value: Any) -> Any:
    return (
        {name: _rounded(each) for name, each in value.items()}
        if isinstance(value, dict)
        else float(f"{value:.3g}")
    )


def judge_left_out(
    found: Mapping[str, Mapping[str, Any]], suites: Sequence[Suite], hosts: Sequence[str]
) -> None:
    """Judge the suites of hosts that the fit has not seen, by it."""
    timing.NOISES.update({kind: timing.Spreads(**each) for kind, each in found.items()})
    left_out = [each for each in suites if each.host in hosts]
    print(
        f"{len(left_out)} suites on {len({each.gpu for each in left_out})} GPUs of {len(hosts)} hosts that the fit lacks"
    )
    others = [(one, tuple(each for each in suites if each.host != one.host)) for one in left_out]
    same = [
        (one, (it,)) for one in left_out for it in left_out if one is not it and one.gpu == it.gpu
    ]
    found_of: Mapping[str, Sequence[unchanged.Pair]] = {
        "all other hosts": others,
        "one process of another host": [(one, (it,)) for one, known in others for it in known][::7],
        "one process of the same GPU": same,
    }
    rows = [unchanged.print_design(name, pairs, show=False) for name, pairs in found_of.items()]
    unchanged.print_table("no time suspected", rows)


def is_training(workload: str) -> bool:
    return any(each in workload for each in _TRAINS)


def groups(suites: Sequence[Suite], timer: Timer) -> Iterator[Group]:
    """Yield the groups of at least two processes.

    Of a host's clock: those at the host speed of the last one.
    """
    for workload, by_gpu in times_by_gpu(suites, timer).items():
        for gpu, (kernels, times) in by_gpu.items():
            alike = on_same_host(times, times[-1]) if times[-1].is_host_clock else times
            if len(alike) > 1 and (
                not alike[0].is_host_clock or alike[0].is_by_host or timer is Timer.HOST
            ):
                values = [each.logarithm for each in alike]
                us = fmean(each.observation.mean_us for each in alike)
                own = fmean(
                    each.own_variance if math.isfinite(each.own_variance) else 0.0 for each in alike
                )
                yield Group(gpu, workload, stdev(values) ** 2, len(values) - 1, kernels, us, own)


def times_by_gpu(
    suites: Sequence[Suite], timer: Timer, *, is_by_folder: bool = False
) -> dict[str, dict[str, tuple[int, list[ProcessTime]]]]:
    """Return the kernels of a call and the times of each GPU, by workload.

    `is_by_folder`: apart for each folder of records, with its name behind the GPU's.
    """
    found: dict[str, dict[str, tuple[int, list[ProcessTime]]]] = defaultdict(dict)
    for workload in sorted({name for suite in suites for name in suite.runs}):
        models = {
            run.fingerprint.device
            for suite in suites
            if (run := suite.runs.get(workload)) is not None
        }
        for model in sorted(models):
            own = [
                each
                for each in suites
                if workload in each.runs and each.runs[workload].fingerprint.device == model
            ]
            if is_by_folder:
                own = [_in_folder(each, workload) for each in own]
            baseline = baseline_of(own, workload)
            if baseline is None:
                continue
            gemm = gemm_kernel(own[0].runs[workload].controls)
            for each in baseline.times(timer, gemm=gemm):
                key = f"{model} {each.place}"
                found[workload].setdefault(key, (baseline.counts.launches, []))[1].append(each)
    return found


def _in_folder(suite: Suite, workload: str) -> Suite:
    run = suite.runs[workload]
    named = msgspec.structs.replace(run, gpu=f"{run.gpu}|{suite.name.partition('/')[0]}")
    return dataclasses.replace(suite, runs={workload: named})


def _of_kernels(each: Group, process: float) -> Group:
    """Return the noise of a short time as that of one kernel, in microseconds. The rest of it, a
    fraction of the time, is the machine's.
    """
    square = each.us**2 / each.kernels
    scaled = {name: getattr(each, name) * square for name in ("variance", "own")}
    return dataclasses.replace(each, **scaled, rest=process**2 * square)


def common_factor(found: Sequence[Group], name: str, *, by: str = "machine") -> tuple[float, float]:
    """Fit the spread between processes, and the degrees of freedom of the factor by which a machine
    or a workload is noisier, by maximum likelihood.

    All times of a machine share its factor. What each factor gains, and both, is printed.
    """
    by_gpu: dict[str, list[Group]] = defaultdict(list)
    for each in found:
        by_gpu[each.gpu].append(each)

    def loss(spread: float, machine: float | None, workload: float | None) -> float:
        factors = machine / stats.chi2.ppf(_QUANTILES, machine) if machine else np.ones(1)
        total = 0.0
        for each in by_gpu.values():
            variances, owns, rests, dofs = (
                np.array([getattr(one, name) for one in each])[:, None]
                for name in ("variance", "own", "rest", "dof")
            )
            # a process is never steadier than its replicates
            expected = np.maximum(factors * spread**2 + rests, owns)
            terms = stats.f.logpdf(
                np.maximum(variances, 1e-10) / expected, dofs, workload or 1e7
            ) - np.log(expected)
            sums = terms.sum(axis=0)
            total -= sums.max() + math.log(np.exp(sums - sums.max()).mean())
        return total

    def best(
        *start: float, is_machine: bool = False, is_workload: bool = False
    ) -> optimize.OptimizeResult:
        def of(values: Sequence[float]) -> float:
            spread, *rest = np.exp(np.clip(values, -12, 7))
            return loss(
                spread, rest.pop(0) if is_machine else None, rest.pop(0) if is_workload else None
            )

        return optimize.minimize(of, np.log(start), method="Nelder-Mead", options={"maxiter": 600})

    usual = math.sqrt(np.median([each.variance for each in found]))
    none = best(usual)
    fits = {
        "machine": best(usual, 5.0, is_machine=True),
        "workload": best(usual, 5.0, is_workload=True),
    }
    both = best(*np.exp(fits["machine"].x), 50.0, is_machine=True, is_workload=True)
    gains = (f"by {kind} {none.fun - each.fun:.1f}" for kind, each in fits.items())
    spread, dof = np.exp(fits[by].x)
    print(
        f"{name}: {len(found)} groups with {sum(each.dof for each in found)} degrees of freedom on {len(by_gpu)} GPUs; "
        f"spread {spread:.3g}, factor of a {by} with {dof:.1f} degrees of freedom\n"
        f"    log likelihood above that of one spread: {', '.join(gains)}, by both {none.fun - both.fun:.1f}"
    )
    # no more than the data have
    return float(spread), min(float(dof), float(sum(each.dof for each in found)))


def kernel_step() -> float:
    """Return how far the kernels of less than 20 us differ at most between two processes on one
    GPU, in microseconds: those of the gallery. Print it for whole models on two GPUs too.
    """
    one, other = side_by_side_suites()
    steps = list(_kernel_steps(one, other))
    step = max(steps)
    models = list(_kernel_steps(*later_suites("later_models")[:2]))
    shares = ", ".join(f"{1000 * np.quantile(steps, it):.0f}" for it in (0.5, 0.9, 0.99, 1.0))
    print(
        f"kernels of less than {_LONG_US:g} us, two processes: 50, 90, 99 and 100 % of {len(steps)} differ by less than"
        f" {shares} ns; in whole models on two other GPUs {100 * np.mean(np.array(models) > step):.1f} % of"
        f" {len(models)} differ by more"
    )
    return step


def _kernel_steps(one: Suite, other: Suite) -> Iterator[float]:
    for workload in one.runs.keys() & other.runs.keys():
        sides = [suite.runs[workload].kernels for suite in (one, other)]
        if [it.identity for it in sides[0]] == [it.identity for it in sides[1]]:
            for before, after in zip(*sides, strict=True):
                if before.device_time_us < _LONG_US:
                    yield abs(after.device_time_us - before.device_time_us)


def between_nights(suites: Sequence[Suite], timer: Timer, process: float) -> float:
    """Return the variance between nights over that between processes: of GPUs that were recorded in
    two folders.
    """
    ratios: list[float] = []
    for by_gpu in times_by_gpu(suites, timer, is_by_folder=True).values():
        by_place: dict[object, list[list[ProcessTime]]] = defaultdict(list)
        for place, (_, times) in by_gpu.items():
            by_place[place.partition("|")[0]].append(times)
        for one, other in (sides for sides in by_place.values() if len(sides) == 2):
            alike = on_same_host(other, one[-1]) if one[0].is_host_clock else other
            if not alike or one[0].observation.mean_us < _LONG_US:
                continue
            count = 1 / len(one) + 1 / len(alike)
            moved = fmean(each.logarithm for each in one) - fmean(each.logarithm for each in alike)
            ratios.append((moved**2 / process**2 - count) / 2)
    found = max(0.0, fmean(ratios)) if ratios else 0.0
    print(
        f"    between nights {found:.2f} of the variance between processes, from {len(ratios)} pairs of nights"
    )
    return found


def _moves(
    suites: Sequence[Suite], timer: Timer
) -> Iterator[tuple[Run, ProcessTime, ProcessTime, tuple[ProcessTime, ProcessTime] | None]]:
    """Yield each run with its time on a GPU of another host, its own, and both with twins as a
    reference.
    """
    for one, other in list(permutations(suites, 2))[::7]:
        if one.host == other.host:
            continue
        baselines = {name: baseline_of([one], name) for name in other.runs}
        known = ((other.runs[name], each) for name, each in baselines.items() if each is not None)
        context = Context(1, known)
        for name, run in other.runs.items():
            baseline = baselines[name]
            if baseline is None or not are_alike(baseline.kernels, run.kernels):
                continue
            gemm = gemm_kernel(run.controls)
            before, after = (
                each.times(timer, gemm=gemm)[0] for each in (baseline, from_run(run, suite="perf"))
            )
            (usual, now), twins = context.twins(run, [before], [after])
            yield run, before, after, None if twins is None else (usual[0], now[0])


def _square(before: ProcessTime, after: ProcessTime, name: str = NOTHING) -> float:
    """Return the square, of one side, of how far a time moved beyond what it follows."""
    rests = [each.logarithm - _followed(each, name) for each in (before, after)]
    return (rests[1] - rests[0]) ** 2 / 2


def _followed(each: ProcessTime, name: str) -> float:
    return SLOPES.get(name, 0.0) * math.log(each.references_us.get(name, 1.0))


def beyond_the_copy(
    suites: Sequence[Suite], within: Callable[[float, int], float]
) -> tuple[float, float]:
    """Fit how far GPU times lie apart between H200s beyond the copy: a fraction of a time, and
    microseconds for each of its kernels. `within`: as for `between_hosts`.
    """
    suites = [each for each in suites if _device(each) in MEASURED_GPUS]
    found: list[tuple[float, int, float, float]] = []
    for workload, by_gpu in times_by_gpu(suites, Timer.DEVICE).items():
        kernels = next(suite.runs[workload].kernels for suite in suites if workload in suite.runs)
        groups = [times for _, times in by_gpu.values()]
        if followed_reference(kernels) != COPY or len(groups) < 2:
            continue
        rests = [fmean(each.logarithm - _followed(each, COPY) for each in it) for it in groups]
        us = fmean(each.observation.mean_us for each in groups[0])
        own = within(us, len(kernels)) * fmean(1 / len(each) for each in groups)
        found.append((stdev(rests) ** 2, len(rests) - 1, len(kernels) / us, own))

    def loss(values: Sequence[float]) -> float:
        whole, kernel = np.exp(values)
        expected = [whole**2 + (kernel * per_us) ** 2 + own for _, _, per_us, own in found]
        return math.fsum(
            dof / 2 * (math.log(each) + variance / each)
            for (variance, dof, *_), each in zip(found, expected, strict=True)
        )

    fitted = optimize.minimize(loss, np.log([0.002, 0.01]), method="Nelder-Mead")
    alone = optimize.minimize(
        lambda it: loss([it[0], -30.0]), np.log([0.002]), method="Nelder-Mead"
    )
    whole, kernel = map(float, np.exp(fitted.x))
    print(
        f"between GPUs, beyond copy: {100 * whole:.3f} % and {1000 * kernel:.1f} ns a kernel, from {len(found)} workloads;"
        f" log likelihood above that of a fraction alone {alone.fun - fitted.fun:.1f}"
    )
    return whole, kernel


def _device(suite: Suite) -> str:
    return next(iter(suite.runs.values())).fingerprint.device


def between_hosts(
    suites: Sequence[Suite], within: Callable[[float, int], float], kernel_us: float
) -> dict[str, float]:
    """Return how far GPU times of other hosts lie apart, of one side, beyond what each reference
    explains.

    `within`: the variance between processes, of a time in microseconds with so many kernels: it is
    no part of that, and neither are `kernel_us` for each kernel.
    """
    squares: dict[str, list[float]] = {name: [] for name in (TWINS, GEMM, NOTHING)}
    for run, before, after, with_twins in _moves(suites, Timer.DEVICE):
        us, kernels = after.observation.mean_us, len(run.kernels)
        own = within(us, kernels)
        expected = own + (kernels * kernel_us / us) ** 2
        squares[NOTHING].append(_square(before, after) - expected)
        has_gemm = all(GEMM in each.references_us for each in (before, after))
        if has_gemm and followed_reference(run.kernels) == GEMM:
            squares[GEMM].append(_square(before, after, GEMM) - expected)
        if with_twins:
            squares[TWINS].append(_square(*with_twins, TWINS) - own)
    found = {name: math.sqrt(max(0.0, fmean(values))) for name, values in squares.items()}
    for name, spread in found.items():
        print(
            f"between hosts, of one side, beyond {name}: {100 * spread:.3f} %, from {len(squares[name])} pairs"
        )
    return found


def between_hosts_by_ratio(suites: Sequence[Suite], process: float) -> dict[str, float]:
    """Return how far ratios of dispatch to the host reference lie apart, between hosts at one
    speed.
    """
    squares = [
        _square(before, after) - process**2
        for _, before, after, _ in _moves(suites, Timer.HOST)
        if after.is_by_host and on_same_host([before], after)
    ]
    spread = math.sqrt(max(0.0, fmean(squares)))
    print(
        f"between hosts, of one side, beyond the host reference: {100 * spread:.3f} %, from {len(squares)} pairs"
    )
    return {NOTHING: spread}


def print_slopes(suites: Sequence[Suite]) -> None:
    """Print with which slope the GPU time of each workload follows each reference, over means of
    GPUs.
    """
    for workload, by_gpu in times_by_gpu(suites, Timer.DEVICE).items():
        kernels = next(suite.runs[workload].kernels for suite in suites if workload in suite.runs)
        for name in (COPY, GEMM):
            points = [
                (
                    fmean(math.log(each.references_us[name]) for each in times),
                    fmean(each.logarithm for each in times),
                )
                for _, times in by_gpu.values()
                if all(name in each.references_us for each in times)
            ]
            x, y = np.array(points).T
            x, y = x - x.mean(), y - y.mean()
            slope = x @ y / (x @ x)
            error = math.sqrt(((y - slope * x) ** 2).sum() / (len(x) - 2) / (x @ x))
            mark = ", which it follows" if name == followed_reference(kernels) else ""
            print(
                f"    {workload}: slope {slope:+.2f} ± {error:.2f} to the {name}, {len(x)} GPUs{mark}"
            )


def print_spreads(suites: Sequence[Suite]) -> None:
    """Print the spread between processes of one GPU and between GPUs, in percent, of each workload
    and timer.
    """
    print(f"{'workload':<40}{'timer':<15}{'processes %':>12}{'GPUs %':>8}")
    for workload in sorted({name for suite in suites for name in suite.runs}):
        for timer in CALL_TIMERS:
            groups = [each for _, each in times_by_gpu(suites, timer)[workload].values()]
            means = [fmean(each.logarithm for each in group) for group in groups]
            dof = sum(len(each) - 1 for each in groups)
            squares = (
                (it.logarithm - mean) ** 2
                for mean, group in zip(means, groups, strict=True)
                for it in group
            )
            within = 100 * math.sqrt(math.fsum(squares) / dof)
            print(f"{workload:<40}{timer.label:<15}{within:>12.3f}{100 * stdev(means):>8.2f}")


def print_hosts(suites: Sequence[Suite]) -> None:
    """Print how much longer the host's times were than the host's own change of speed explains, at
    most over all pairs.
    """
    for timer in (Timer.HOST, Timer.END_TO_END):
        ratios = []
        for workload in sorted({name for suite in suites for name in suite.runs}):
            samples = [
                run.samples.get(timer)
                for suite in suites
                if (run := suite.runs.get(workload)) is not None
            ]
            seen = [observe(sample) for sample in samples if sample is not None]
            known = [(each.mean_us, each.control_us) for each in seen if each.control_us]
            for (before_us, was_us), (after_us, is_us) in permutations(known, 2):
                ratios.append((after_us / before_us / max(1.0, is_us / was_us), workload))
        largest, workload = max(ratios)
        print(
            f"{timer.label}: at most {largest:.2f} times in {len(ratios)} pairs of processes ({workload})"
        )


def print_nights(night: float) -> None:
    """Print how many nights of one GPU would show that nights vary by 0.75 and not by this, as a
    part of the variance between processes: at a level of 5 %, with a power of 80 %.
    """
    for processes in (1, 2, 4):
        ratio = (1 / processes + 0.75) / (1 / processes + night)
        for workloads in (1.0, 2.8):  # seven that correlate by 0.45 are worth 2.8
            dofs = (nights * workloads for nights in range(1, 1000))
            tells = (stats.chi2.ppf(0.95, it) / stats.chi2.ppf(0.2, it) <= ratio for it in dofs)
            nights = 2 + next(place for place, each in enumerate(tells) if each)
            print(f"{processes} processes a night, worth {workloads} workloads: {nights} nights")


if __name__ == "__main__":
    main()
