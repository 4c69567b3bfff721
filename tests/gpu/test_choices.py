"""Choices of autotuners on a GPU: recorded, replayed, and lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from kernelgauge import Workload
from kernelgauge.judge.baseline import from_run
from kernelgauge.measure import Settings
from kernelgauge.measure.choices import Replay
from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.measurement import Measured
from kernelgauge.measure.runner import measure_groups
from kernelgauge.run import KernelChoice, Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def doubled(x, y, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        tl.store(y + place, tl.load(x + place, mask=place < n) * 2, mask=place < n)

    CONFIGS = [triton.Config({"SIZE": size}, num_warps=4) for size in (256, 512, 1024)]
    TUNED = triton.autotune(CONFIGS, key=["n"])(doubled)


def double(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    TUNED[lambda chosen: (triton.cdiv(x.numel(), chosen["SIZE"]),)](x, y, x.numel())
    return y


class Normalized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x) + nn.functional.layer_norm(x, x.shape[-1:])


def inputs() -> tuple[torch.Tensor]:
    return (torch.randn(4096, 4096),)


def products() -> tuple[torch.Tensor]:
    return (torch.randn(512, 1024),)


DESCENT = {"coordinate_descent_tuning": True}
WORKLOADS = {
    "triton": Workload("double", "eager", lambda: double, inputs),
    "inductor": Workload("norm", "compiled", Normalized, inputs, compile={}),
    "custom": Workload("double", "compiled", lambda: double, inputs, compile={}),
    "descent": Workload("norm", "descent", Normalized, inputs, compile={"options": DESCENT}),
}
PRODUCT = Workload(
    "product",
    "compiled",
    lambda: nn.Sequential(nn.Linear(1024, 512, bias=False), nn.ReLU()),
    products,
    compile={"mode": "max-autotune-no-cudagraphs"},
    dtype="bf16",
)


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Put the compile caches elsewhere; call it to put them elsewhere again."""
    folders = iter(range(100))

    def move() -> None:
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            monkeypatch.setenv(variable, str(tmp_path / str(next(folders))))
        if torch.cuda.is_available():
            TUNED.cache.clear()

    move()
    return move


def measured(workload: Workload, recorded: tuple[KernelChoice, ...] = (), **how: Any) -> Run:
    device = CudaDevice()
    replays = {workload.id: Replay(recorded, **how)}
    (results,) = measure_groups(
        [workload], device, device.fingerprint(), Settings(), timed=False, replays=replays
    )
    result = results[workload.id]
    if not isinstance(result, Measured):
        raise result
    return result.run


def others(run: Run) -> tuple[KernelChoice, ...]:
    """Return the slowest rival of each choice, as if a baseline had it."""
    found = []
    for each in run.choices:
        known = {name: us for name, us in each.times_us.items() if us is not None}
        config = max(known, key=known.__getitem__)
        found.append(KernelChoice(each.kernel, each.key, config, each.source, each.times_us))
    return tuple(found)


def taken(run: Run) -> dict[tuple[str, str], tuple[str, str]]:
    return {(it.kernel, it.source): (it.config, it.recorded) for it in run.choices}


@pytest.mark.parametrize("name", WORKLOADS)
def test_choices_are_recorded_with_rivals(empty_caches: Callable[[], None], name: str) -> None:
    run = measured(WORKLOADS[name])
    assert run.choices
    for each in run.choices:
        assert len(each.times_us) > 1
        assert each.config in each.times_us


@pytest.mark.parametrize("caches", ["empty", "full"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_recorded_choice_is_taken(empty_caches: Callable[[], None], name: str, caches: str) -> None:
    workload = WORKLOADS[name]
    slowest = others(measured(workload))
    if caches == "empty":
        empty_caches()
    run = measured(workload, slowest)
    expected = {(it.kernel, it.source): (it.config, "") for it in slowest}
    assert taken(run) == expected
    assert [it.times_us for it in run.choices] == [it.times_us for it in slowest]
    again = measured(workload, run.choices)
    assert [it.identity for it in again.kernels] == [it.identity for it in run.kernels]


def of_product(run: Run) -> KernelChoice:
    (found,) = (each for each in run.choices if "mm" in each.kernel)
    return found


def test_templates_are_recorded_and_taken(empty_caches: Callable[[], None]) -> None:
    chosen = of_product(measured(PRODUCT))
    known = {name: us for name, us in chosen.times_us.items() if us is not None}
    slowest = max((name for name in known if "triton" in name), key=known.__getitem__)
    for config in (chosen.config, slowest, "mm"):
        run = measured(PRODUCT, (replace(chosen, config=config),))
        assert (of_product(run).config, of_product(run).recorded) == (config, "")
        names = [each.identity.name for each in run.kernels]
        assert any("triton_tem" in name for name in names) is ("triton" in config)
    lost = of_product(measured(PRODUCT, (replace(chosen, config="triton_mm,gone"),)))
    assert (lost.recorded, lost.error) == ("triton_mm,gone", "")


@pytest.mark.parametrize("caches", ["empty", "full"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_missing_choice_is_named(empty_caches: Callable[[], None], name: str, caches: str) -> None:
    workload = WORKLOADS[name]
    first = measured(workload).choices
    if caches == "empty":
        empty_caches()
    gone = "SIZE=77,num_warps=4"
    recorded = tuple(KernelChoice(it.kernel, it.key, gone, it.source) for it in first)
    run = measured(workload, recorded)
    assert {(it.recorded, it.error) for it in run.choices} == {(gone, "")}
    assert all(it.config != gone for it in run.choices)


def test_choice_in_a_foreign_cache_is_not_taken(
    empty_caches: Callable[[], None], tmp_path: Path
) -> None:
    """A process that ran before may have left another choice in Inductor's cache."""
    from torch._inductor.utils import clear_inductor_caches  # takes seconds

    workload = WORKLOADS["inductor"]
    first = measured(workload)
    for file in tmp_path.rglob("*.best_config"):
        chosen = json.loads(file.read_text())
        other = others(first)[0].config
        values = dict(part.split("=") for part in other.split(","))
        file.write_text(json.dumps(chosen | {name: int(value) for name, value in values.items()}))
    clear_inductor_caches()
    assert taken(measured(workload, first.choices)) == taken(first)


def test_launches_of_a_run_tell_its_choices(empty_caches: Callable[[], None]) -> None:
    """As older baselines do, which have no choices."""
    run = measured(WORKLOADS["inductor"])
    known = {
        (it.kernel, it.config) for it in from_run(replace(run, choices=())).choices_to_replay()
    }
    assert {(it.kernel, it.config) for it in run.choices} <= known
