"""Two calibrations of one workload in one baseline, and what does not belong into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import Baseline, Recorded, calibrated, decode_baseline, descended, encode_baseline, joined
from kernelgauge.run import Run
from tests.builders import ELSEWHERE, HERE, OTHER_SOURCE, WORKLOAD, counts, fingerprint, mlp_kernels, pair, run

COMPARISONS = 3


def of_gpu(gpu: str, *xblocks: int, us: float = 38.0, **changes: Any) -> Baseline:
    return calibrated(
        [run(gpu=gpu, kernels=mlp_kernels(us=us, xblock=each), **changes) for each in xblocks], suite="perf"
    )


def together(*baselines: Baseline) -> Baseline:
    first, *others = baselines
    for other in others:
        first = joined(first, other, comparisons=COMPARISONS)
    return first


def test_processes_join_the_entry_of_their_configuration_with_draws_and_gpus() -> None:
    whole = together(of_gpu(HERE, 1024, 1024, 512), of_gpu(ELSEWHERE, 512, 512, 256))
    tuned = [(entry.kernels[2].identity.kernel_kwargs, entry.draws) for entry in whole.entries]
    assert tuned == [("XBLOCK=512", 3), ("XBLOCK=1024", 2), ("XBLOCK=256", 1)]
    assert [process.gpu for process in whole.entries[0].processes] == [HERE, ELSEWHERE, ELSEWHERE]


def test_a_kernels_time_is_then_the_mean_over_all_processes() -> None:
    whole = together(of_gpu(HERE, 1024, 1024, 1024, us=40.0), of_gpu(ELSEWHERE, 1024, us=44.0))
    assert whole.entries[0].kernels[2].device_time_us == 41.0


def test_draws_that_nobody_measured_do_not_count_in_it() -> None:
    """An update of a calibrated baseline keeps its draws, and one process."""
    (entry,) = of_gpu(HERE, 1024, us=50.0).entries
    updated = msgspec.structs.replace(of_gpu(HERE, 1024), entries=(msgspec.structs.replace(entry, draws=10),))
    (whole,) = together(updated, of_gpu(ELSEWHERE, *[1024] * 4, us=40.0)).entries
    assert (whole.draws, whole.kernels[2].device_time_us) == (14, 42.0)


def test_one_after_the_other_is_all_at_once() -> None:
    runs = [run(gpu=gpu, kernels=mlp_kernels(us=us)) for gpu, us in ((HERE, 38.0), (ELSEWHERE, 38.5), ("c", 39.0))]
    assert together(*(calibrated([each], suite="perf") for each in runs)) == calibrated(runs, suite="perf")


def test_what_was_recorded_last_is_remembered_and_nothing_is_replaced() -> None:
    recorded = Recorded("2026-11-22T10:00:00+00:00", "abc", "0.1.0")
    old = descended(of_gpu(HERE, 1024), of_gpu(HERE, 512))
    new = calibrated([run(gpu=ELSEWHERE)], suite="perf", recorded=recorded)
    whole = together(old, new)
    assert whole.ancestors == old.ancestors != ()
    assert whole.recorded == new.recorded


def test_joined_takes_a_baseline_of_schema_2() -> None:
    before = encode_baseline(of_gpu(HERE, 1024)).replace(b'"schema_version": 4', b'"schema_version": 2')
    old = decode_baseline(before, where="", workload=WORKLOAD)
    whole = together(old, of_gpu(ELSEWHERE, 1024))
    assert decode_baseline(encode_baseline(whole), where="", workload=WORKLOAD) == whole
    assert whole.entries[0].draws == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"counts": counts(memsets=3)}, r"^memsets 2 -> 3$"),
        ({"machine": fingerprint(driver="590.1")}, r"^driver \S+ -> 590\.1$"),
        ({"machine": fingerprint(power_limit_watts=500.0)}, r"^power_limit_watts 700\.0 -> 500\.0$"),
    ],
)
def test_other_software_and_other_work_do_not_join_and_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        together(of_gpu(HERE, 1024), of_gpu(ELSEWHERE, 1024, **changes))


def test_a_memory_that_moved_by_some_mebibytes_is_no_other_machine() -> None:
    other = of_gpu(ELSEWHERE, 1024, machine=fingerprint(memory_bytes=150_100_000_000))
    assert together(of_gpu(HERE, 1024), other).entries[0].draws == 2


def test_kernels_of_another_source_are_other_code() -> None:
    other = calibrated([run(gpu=ELSEWHERE, kernels=mlp_kernels(source=OTHER_SOURCE))], suite="perf")
    with pytest.raises(ValueError, match=r"^generated source of triton_"):
        together(of_gpu(HERE, 1024), other)


def around(us: float) -> tuple[float, ...]:
    return tuple(us * factor for factor in (0.9995, 1.0, 1.0005, 1.0)) * 4


def processes(gpu: str, device: float = 205.0, host: float = 50.0) -> Sequence[Run]:
    return [run(gpu=gpu, device=around(device), host=around(host), end_to_end=around(device + 20)) for _ in range(3)]


@pytest.mark.parametrize(("gpu", "device"), [(HERE, 215.0), (HERE, 195.0), (ELSEWHERE, 225.0)])
def test_a_device_time_that_moved_is_a_change_and_no_noise(gpu: str, device: float) -> None:
    old = calibrated(processes(HERE), suite="perf")
    with pytest.raises(ValueError, match=rf"^device time 205\.\d -> {device:.1f} us \([+-]"):
        together(old, calibrated(processes(gpu, device), suite="perf"))


def test_a_host_clock_that_moved_is_one_on_the_same_host_only() -> None:
    old = calibrated(processes(HERE), suite="perf")
    with pytest.raises(ValueError, match=r"^host dispatch 50\.0 -> 80\.0 us"):
        together(old, calibrated(processes(HERE, host=80.0), suite="perf"))
    assert together(old, calibrated(processes(ELSEWHERE, host=80.0), suite="perf")).entries[0].draws == 6


def test_a_gpu_whose_copy_is_slower_as_copies_are_may_join() -> None:
    new = [run(gpu=ELSEWHERE, device=around(206.0), controls=pair(copy=30.5)) for _ in range(3)]
    assert together(calibrated(processes(HERE), suite="perf"), calibrated(new, suite="perf")).entries[0].draws == 6


def test_another_configuration_of_another_source_is_other_code() -> None:
    new = calibrated([run(gpu=ELSEWHERE, kernels=mlp_kernels(xblock=512, source=OTHER_SOURCE))], suite="perf")
    with pytest.raises(ValueError, match=r"^generated source of triton_"):
        together(of_gpu(HERE, 1024), new)


def test_a_host_that_dispatches_slower_shows_in_another_configuration_too() -> None:
    """Its GPU is known by another configuration, and the host's work is the same whatever was tuned."""
    there = [run(gpu=ELSEWHERE, host=around(50.0), kernels=mlp_kernels(xblock=512)) for _ in range(3)]
    old = calibrated([*processes(HERE), *there], suite="perf")
    new = [run(gpu=ELSEWHERE, host=around(80.0), device=around(205.0)) for _ in range(3)]
    with pytest.raises(ValueError, match=r"host dispatch 50\.0 -> 80\.0 us"):
        together(old, calibrated(new, suite="perf"))


def test_another_configuration_may_take_another_time() -> None:
    new = calibrated([run(device=around(224.0), kernels=mlp_kernels(us=56.0, xblock=512))] * 2, suite="perf")
    assert [entry.draws for entry in together(calibrated(processes(HERE), suite="perf"), new).entries] == [3, 2]
