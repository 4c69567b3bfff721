"""Templates that Inductor chooses by timing them, on a CPU: of a batched product, torch's or a generated
one.
"""

import pytest
import torch
from msgspec.structs import replace

from kernelgauge import Workload
from kernelgauge.measure import Settings
from kernelgauge.measure.choices import Replay
from kernelgauge.measure.device import choose_device
from kernelgauge.measure.measurement import Measured
from kernelgauge.measure.numerics import compare_with_float64
from kernelgauge.measure.runner import measure_groups
from kernelgauge.run import KernelChoice, Run

OPTIONS = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, y) + torch.sum(x)


WORKLOAD = Workload(
    "product",
    "compiled",
    lambda: product,
    lambda: (torch.randn(4, 64, 64), torch.randn(4, 64, 64)),
    compile={"options": OPTIONS},
    dtype="fp32",
)


def measured(*recorded: KernelChoice, tunes: bool = False) -> Run:
    device, workload = choose_device("cpu"), WORKLOAD
    replays = {workload.id: Replay(recorded, tunes=tunes)}
    (results,) = measure_groups(
        [workload], device, device.fingerprint(), Settings(), timed=False, replays=replays
    )
    result = results[workload.id]
    assert isinstance(result, Measured), result
    return result.run


@pytest.fixture(scope="module")
def tuned() -> Run:
    run = measured()
    if not run.choices:
        pytest.skip("Inductor offers one template here")
    return run


@pytest.mark.parametrize("is_fastest", [True, False])
def test_recorded_template_is_taken(tuned: Run, is_fastest: bool) -> None:
    (choice,) = tuned.choices
    assert choice.config in choice.times_us
    (slower,) = choice.times_us.keys() - {choice.config}
    wanted = replace(choice, config=choice.config if is_fastest else slower)
    run = measured(wanted)
    assert run.choices == (wanted,)
    assert ("aten::bmm" in run.op_names()) is (wanted.config == "bmm")
    replay = Replay([wanted])
    assert compare_with_float64(WORKLOAD, choose_device("cpu"), replay, seed=1)
    assert replay.made == (wanted,)


@pytest.mark.parametrize("tunes", [False, True])
def test_missing_template_is_named_unless_tuned(tuned: Run, tunes: bool) -> None:
    (choice,) = tuned.choices
    (found,) = measured(replace(choice, config="gone"), tunes=tunes).choices
    assert (found.recorded, found.config in choice.times_us) == ("" if tunes else "gone", True)
