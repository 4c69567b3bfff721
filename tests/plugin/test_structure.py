"""What structure sees without a clock, for real on the CPU: what each op is given and finds in
data, and what a call keeps.
"""

from pathlib import Path

import pytest

from kernelgauge.judge import Status
from kernelgauge.results import read_results
from tests.planted import LOSING
from tests.plugin.inner_project import Run, text_of

pytestmark = pytest.mark.timeout(300)

OPS = (
    LOSING
    + """
import ctypes, functools, itertools, logging, random
from torch.nn import functional as F

cached = functools.lru_cache(maxsize=None)(lambda number: bytes(20_000))

def test_compiled(kernelgauge):
    call = lambda x: F.gelu(x.pow(2.2 if LOST else 2.0))
    kernelgauge.using(compile={"backend": "aot_eager"})(call, square())

def test_compiled_dtype(kernelgauge):
    kind = torch.float64 if LOST else torch.float32
    kernelgauge.using(compile={})(lambda x: x.bfloat16().to(kind).sum(), square())

def test_pow(kernelgauge):
    kernelgauge(lambda x: x.pow(2.2 if LOST else 2.0), square())

def test_exponent(kernelgauge):
    kernelgauge(lambda x: x ** (2.000001 if LOST else 2), square())

def test_norm(kernelgauge):
    kernelgauge(lambda x: torch.linalg.vector_norm(x, 2.5 if LOST else float("inf")), square())

def test_bound(kernelgauge):
    kernelgauge(lambda x: x.clamp(0.0, 6.0) if LOST else x.clamp(0.0), square())

def test_optimizer(kernelgauge):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True, betas=(0.9, 0.99 if LOST else 0.999))
    kernelgauge(lambda x: (optimizer.zero_grad(), net(x).sum().backward(), optimizer.step()), torch.rand(4, 8))

def test_factor(kernelgauge):
    kernelgauge(lambda x: x * (0.4 if LOST else 0.3), square())

def test_text(kernelgauge):
    kernelgauge(lambda x: F.gelu(x, approximate="tanh" if LOST else "none"), square())

def test_texts(kernelgauge):
    kinds = ["none", "tanh", *["tanh" if LOST else "none"] * 2]
    kernelgauge(lambda x: [F.gelu(x, approximate=kind) for kind in kinds], square())

def test_strides(kernelgauge):
    kernelgauge(torch.add, square(), square().t() if LOST else square())

def test_strides_in_list(kernelgauge):
    kernelgauge(lambda *x: torch.cat(x), square(), square().t() if LOST else square())

def test_einsum_dtypes(kernelgauge):
    tensors = [square().to(torch.float64 if LOST else torch.float32) for _ in range(2)]
    kernelgauge(lambda x: torch.einsum("ij,jk->ik", *tensors), square())

def test_einsum_shapes(kernelgauge):
    tensors = [torch.rand(*((32, 64) if LOST else (64, 32))), torch.rand(*((64, 32) if LOST else (32, 64)))]
    kernelgauge(lambda x: torch.einsum("ij,jk->ik", *tensors), square())

def test_cat_dtypes(kernelgauge):
    tensors = [square().to(torch.float64 if LOST else torch.float32) for _ in range(2)]
    kernelgauge(lambda x: torch.cat(tensors), square())

def test_stack_dtypes(kernelgauge):
    tensors = [square().to(torch.float64 if LOST else torch.float32) for _ in range(2)]
    kernelgauge(lambda x: torch.stack(tensors), square())

def test_foreach_dtypes(kernelgauge):
    tensors = [square().to(torch.float64 if LOST else torch.float32) for _ in range(2)]
    kernelgauge(lambda x: torch._foreach_abs(tensors), square())

def test_long_list(kernelgauge):
    tensors = [square()] * (50 if LOST else 40)
    kernelgauge(lambda x: torch.cat(tensors), square())

def test_indices(kernelgauge):
    index = torch.arange(16 if LOST else 8)
    kernelgauge(lambda x: x.index_put_((index,), torch.tensor(1.0)), square())

def test_indices_behind_a_read(kernelgauge):
    one, other = torch.arange(8), torch.arange(16)
    def call(x):
        y = x[one].sum()
        if LOST and y.isnan():
            raise ValueError
        return y + x[other].sum()
    kernelgauge(call, square())

def test_scalar(kernelgauge):
    number = torch.tensor(1.0, dtype=torch.double if LOST else torch.float)
    kernelgauge(lambda x: number / 5, square())

def test_dimension(kernelgauge):
    kernelgauge(lambda x: x.cumsum(2 if LOST else -1), torch.rand(4, 4, 4, 4))

def test_kept_at_times(kernelgauge):
    numbers = itertools.count()
    kernelgauge(lambda x: (kept.append(bytearray(60_000 * LOST * (next(numbers) % 3 == 0))), x.relu())[1], square())

def test_unbounded_cache(kernelgauge):
    numbers = itertools.count()
    kernelgauge(lambda x: (cached(next(numbers) * LOST), x.relu())[1], square())

# Other spellings of the same dimensions.

def spelled(before, after):
    return lambda *given: (after if LOST else before)(*given)

SPELLINGS = {
    "cat": (lambda x: torch.cat((x, x), -1), lambda x: torch.cat((x, x), 3)),
    "mean": (lambda x: x.mean((2, 3)), lambda x: x.mean((-2, -1))),
    "mixed": (lambda x: x.sum((0, -1)), lambda x: x.sum((0, 3))),
    "softmax": (lambda x: x.softmax(-1), lambda x: x.softmax(3)),
}

@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(kernelgauge, name):
    kernelgauge(spelled(*SPELLINGS[name]), torch.rand(4, 4, 4, 4))

@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_compiled(kernelgauge, name):
    kernelgauge.using(compile={"backend": "aot_eager"})(spelled(*SPELLINGS[name]), torch.rand(4, 4, 4, 4))

# What differs between calls or processes by itself.

def test_schedule(kernelgauge):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    def step(x):
        net(x).sum().backward()
        optimizer.step()
        schedule.step()
        kept.append(schedule.get_last_lr())
        optimizer.zero_grad()
    kernelgauge(step, torch.rand(4, 8))

drawn = random.Random().random()

def test_number_of_data(kernelgauge):
    data = torch.full((64, 64), drawn)
    kernelgauge(lambda x: torch.add(x, x, alpha=data.mean().item() / 3) * (data[0].tolist()[0] / 3), square())

def test_number_that_differs_at_times(kernelgauge):
    kernelgauge(lambda x: (x * (0.5 if random.Random().random() < 0.5 else 0.25)).sign(), square())

def test_computed(kernelgauge):
    kernelgauge(lambda x: x * 2 + x * (32 ** -0.5 if LOST else 32 ** 0.5), square())

def test_given(kernelgauge):
    kernelgauge(lambda x: x.round(decimals=2) if LOST else x.round(), square())

def test_one_of_several(kernelgauge):
    kernelgauge(lambda x: x * (0.5 if LOST else 0.25) + x * 0.125, square())

def test_strides_of_some_calls(kernelgauge):
    numbers, one, other = itertools.count(), square(), square().t() if LOST else square()
    kernelgauge(lambda x: x + (one if next(numbers) % 3 else other), square())

def test_shapes_of_some_calls(kernelgauge):
    numbers, one, other = itertools.count(), square(), torch.rand(64, 128 if LOST else 64)
    kernelgauge(lambda x: x @ (one if next(numbers) % 2 else other), square())

def test_text_of_a_function(kernelgauge):
    kernelgauge(lambda x: torch.einsum("ij,jk->ik" if LOST else "ij,kj->ik", x, x), square())

def test_text_left_out(kernelgauge):
    kernelgauge(lambda x: torch.fft.fft(x, norm="ortho") if LOST else torch.fft.fft(x), square())

def test_drawn_in_call(kernelgauge):
    kernelgauge(lambda x: (x[torch.rand(64) > 0.5].clamp(max=x.max().item()), logging.warning("x"))[0], square())

def test_drawn_indices(kernelgauge):
    mask = torch.rand(64) > 0.4 + 0.2 * drawn
    kernelgauge(lambda x: x.index_put_((mask.nonzero()[:, 0],), torch.tensor(1.0)), square())

def test_filling_cache(kernelgauge):
    numbers = itertools.count()
    kernelgauge(lambda x: (cached(next(numbers) % 3), x.relu())[1], square())

def test_nested(kernelgauge):
    kernelgauge(torch.sin, torch.nested.nested_tensor([torch.rand(2, 8), torch.rand(3, 8)], layout=torch.jagged))
"""
)
OTHER_LIST = "float32[64,64] x2 -> float64[64,64] x2 in 1 kernel"
CAUSES = {
    "pow": "exponent 2.0 -> 2.2 in 1 kernel",
    "exponent": "exponent 2 -> 2.000001 in 1 kernel",
    "norm": "ord inf -> 2.5 in 1 kernel",
    "bound": "max (none) -> 6.0 in 1 kernel",
    "optimizer": "beta2 0.999 -> 0.99 in 1 kernel",
    "computed": "an argument 5.656854 -> 0.1767767 in 1 kernel",
    "given": "decimals (none) -> 2 in 1 kernel",
    "one_of_several": "an argument 0.25 -> 0.5 in 1 kernel",
    "strides_of_some_calls": "inputs contiguous -> [64,64] by strides 1,64 or contiguous in 1 kernel",
    "shapes_of_some_calls": "input shape [64,64] -> [64,128 or 64,64] in 1 kernel",
    "text_of_a_function": "equation 'ij,kj->ik' -> 'ij,jk->ik' in 1 kernel",
    "text_left_out": "norm (none) -> 'ortho' in 1 kernel",
    "factor": "an argument 0.3 -> 0.4 in 1 kernel",
    "text": "approximate 'none' -> 'tanh' in 1 kernel",
    "texts": "approximate 'none' -> 'tanh' in 2 kernels",
    "compiled": "an argument 2.0 -> 2.2 in 1 kernel",
    "compiled_dtype": "float32 -> float64 in ",
    "strides": "inputs contiguous -> [64,64] by strides 1,64 in 1 kernel",
    "strides_in_list": "inputs contiguous -> [64,64] by strides 1,64 in 1 kernel",
    "einsum_dtypes": OTHER_LIST,
    "einsum_shapes": "float32[64,32], float32[32,64] -> float32[32,64], float32[64,32] in 1 kernel",
    "cat_dtypes": OTHER_LIST,
    "stack_dtypes": OTHER_LIST,
    "foreach_dtypes": OTHER_LIST,
    "long_list": "float32[64,64] x40 -> float32[64,64] x50 in 1 kernel",
    "indices": "8 -> 16 indices in 1 kernel",
    # sizes that follow from data are not compared, nor a part of their sum
    "indices_behind_a_read": "2 new kernels: isnan, is_nonzero",
    "sparse": " stored numbers in 1 kernel",
    "found": " numbers found in 1 kernel",
    "kept": "each call leaves 20.",
    # torch's profiler records no number in float64; the other one is still an integer
    "scalar": "another number of tensors or dimensions in 1 kernel",
    "dimension": "dim -1 -> 2 in 1 kernel",
    "kept_at_times": "each call leaves 12.",  # the least of five calls, by call
    "unbounded_cache": "each call leaves 20.",
}


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest on the CPU; return its output."""
    pytester.makepyfile(test_ops=OPS)
    return lambda *arguments: text_of(pytester.runpytest_inprocess("-q", *arguments))


def statuses() -> dict[str, Status | None]:
    found = read_results(Path("reports/latest/results.json")).workloads
    return {each.id.removeprefix("test_ops-test_"): each.status for each in found}


def test_structure_sees_what_ops_are_given_and_calls_keep(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--perf-update")
    said = run()
    assert set(statuses().values()) == {Status.PASS}, said
    monkeypatch.setenv("LOST", "1")
    said = run()
    failed = {name: status for name, status in statuses().items() if status is not Status.PASS}
    assert failed.keys() == CAUSES.keys(), said
    assert failed["kept"] is failed["unbounded_cache"] is Status.REGRESSED
    for name, cause in CAUSES.items():
        block = said[said.index(f"\ntest_ops-test_{name}: ") :].split("\n  baseline", 1)[0]
        assert cause in block
        assert ("indices in" in block) == (name == "indices")
        assert name in ("strides", "sparse") or "\n  code     test_ops.py:" in block, block
