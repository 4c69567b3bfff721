"""The fixture on a GPU measures what a test built on the CPU, and leaves it there; the examples of
the docs run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

ROOT = Path(__file__).resolve().parents[2]
REACHED = """
import functools
import types

import pytest
import torch
from torch import nn

MODEL = nn.Linear(64, 64)
MASK = torch.ones(64)


class Scaled(nn.Module):
    table = torch.ones(64)

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(64, 64), torch.full((64,), 2.0)

    def forward(self, x):
        return self.linear(x) * self.scale * self.table * MASK


class Trainer:
    def __init__(self, **options):
        self.model = Scaled()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **options)
        self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer)

    def step(self, x):
        self.model(x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def in_closure():
    model = Scaled()
    return lambda x: model(x)


def of_views():
    whole = torch.zeros(128)
    return lambda x: (whole[:64].add_(1), view.add_(x[0]))[1] if (view := whole[64:]) is not None else None


def nested():
    return functools.partial(lambda parts, x: parts["first"][0](x), {"first": [Scaled()]})


def in_namespace():
    return types.SimpleNamespace(model=Scaled()).model.forward


CASES = [in_closure(), of_views(), nested(), in_namespace(), lambda x: MODEL(x), torch.compile(in_closure())]


@pytest.mark.parametrize("function", CASES, ids=["closure", "views", "nested", "bound", "global", "compiled"])
def test_function(kernelgauge, function):
    assert kernelgauge(function, torch.randn(16, 64)).kernels
    assert MODEL.weight.device.type == MASK.device.type == "cpu"
    function(torch.randn(16, 64))


def test_module_of_the_arguments(kernelgauge):
    model = Scaled()
    kernelgauge(lambda module, x, also: module(x) + also["it"](x), model, torch.randn(16, 64), also={"it": nn.Linear(64, 64)})
    model(torch.randn(16, 64))


def test_module(kernelgauge):
    kernelgauge(Scaled(), torch.randn(16, 64))


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"capturable": False}], ids=str)
@pytest.mark.parametrize("has_state", [False, True])
def test_training(kernelgauge, options, has_state):
    trainer, x = Trainer(**options), torch.randn(16, 64)
    parameters = list(trainer.model.parameters())
    if has_state:
        trainer.step(x)
    before = trainer.model.linear.weight.detach().clone()
    kernelgauge(trainer.step, x)
    assert all(a is b for a, b in zip(parameters, trainer.model.parameters()))
    assert not torch.equal(before, trainer.model.linear.weight)
    trainer.step(x)  # all of it is on the CPU again


def test_own_tensors(kernelgauge):
    bias = torch.ones(64, device=kernelgauge.device)
    kernelgauge(lambda x: x + bias + torch.ones(64, device=kernelgauge.device), torch.randn(16, 64))
    assert bias.is_cuda


def test_benchmark(benchmark):
    def setup():
        return (Scaled(), torch.randn(16, 64)), {}

    benchmark.pedantic(lambda module, x: module(x), setup=setup, rounds=3)


def test_benchmark_of_a_closure(benchmark):
    model, used = Scaled(), []
    benchmark.pedantic(lambda x: model(x), args=(torch.randn(16, 64),), teardown=used.append)
    assert used and model.scale.device.type == "cpu"
"""
# What the examples of the docs import, and the names that a part of a file needs.
STAND_INS = {
    "my_ops.py": "from torch.nn.functional import scaled_dot_product_attention as attention\n",
    "my_kernels.py": """
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, size, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    row = tl.load(x + tl.program_id(0) * size + places, mask=places < size).to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row) / size + 1e-6)
    tl.store(y + tl.program_id(0) * size + places, row * scale * tl.load(weight + places, mask=places < size))


def rms_norm(x, weight):
    y = torch.empty_like(x)
    rms_norm_kernel[(x.shape[0],)](x, weight, y, x.shape[1], SIZE=triton.next_power_of_2(x.shape[1]))
    return y
""",
}
PREAMBLE = """
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy as loss

logits, labels = torch.randn(64, 512, requires_grad=True), torch.randint(512, (64,))
"""


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
        "CI": "",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "kernelgauge.plugin", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == code, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_fixture_moves_what_a_call_reaches(tmp_path: Path) -> None:
    (tmp_path / "test_reached.py").write_text(REACHED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run(tmp_path, "--perf-update", "--perf-benchmark")
    run(tmp_path, "-m", "not timing", "--perf-benchmark")


FULL = """
import torch

small, large = torch.ones(1000), torch.empty(1 << 30)

def test_full(kernelgauge):
    torch.cuda.set_per_process_memory_fraction((2 << 30) / torch.cuda.mem_get_info()[1])
    kernelgauge.using(timing=False)(lambda: (small + 1, large[:1] + 1))

def test_behind():
    assert small.device == large.device == torch.device("cpu")
    assert small.sum() == 1000
"""


def test_call_that_reaches_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_full.py").write_text(FULL)
    said = run(tmp_path, code=1)
    assert "1 failed, 1 passed" in said, said
    assert "test_full-test_full: cuda:0 has no memory for what the call reaches" in said, said
    assert "Traceback" not in said


# A suite of the blocks that declare workloads. Each is kept, though an example only shows it.
SUITE = """
import kernelgauge
import torch
import transformers
from kernelgauge import Training
from torch import nn
from transformers import StaticCache

made = []


class Workload(kernelgauge.Workload):
    def __post_init__(self):
        super().__post_init__()
        made.append(self)


def build_llama():
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8192, **sizes))


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(768, 256), nn.GELU(), nn.Linear(256, 768))


class Attention(nn.MultiheadAttention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, batch_first=True)

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]

"""
DECLARED = """

def pytest_kernelgauge_workloads():
    return list(made)
"""


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_suites_of_the_docs_run(tmp_path: Path) -> None:
    """Each block that declares a whole workload: training steps, sequences, graphs, variants, one
    line for a function.
    """
    suite, models = (blocks_of(ROOT / "docs" / f"{name}.md") for name in ("suite", "models"))
    declared = [each for each in (*suite, *models) if "Workload" in each and "..." not in each]
    assert len(declared) == 5
    text = "".join(
        re.sub(r"(?m)^(?:from (?:kernelgauge|my_model) import .*|def pytest_.*\n.*)\n", "", each)
        for each in declared
    )
    (tmp_path / "perf").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "perf" / "conftest.py").write_text(SUITE + text + DECLARED)
    (tmp_path / "perf" / "test_perf.py").write_text(
        next(each for each in suite if "kernelgauge.standard" in each)
    )
    (tmp_path / "perf" / "test_more.py").write_text(
        next(each for each in suite if "sibling" in each)
    )
    run(tmp_path, "perf", "--perf-update")
    run(tmp_path, "perf", "--perf-strict", "-m", "not timing")


def test_examples_of_the_docs_run(tmp_path: Path) -> None:
    """Every file and every test function in a block of Python that asks for the fixture."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    pages, count = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], 0
    for page in pages:
        for number, block in enumerate(blocks_of(page)):
            named = re.match(r"# (\S+\.py)\n", block)
            if (
                named and "def test_" not in block and "kernelgauge" not in block
            ):  # a module that the next block imports
                (tmp_path / Path(named[1]).name).write_text(block)
            elif "(kernelgauge" in block:
                text = block if named else PREAMBLE + block
                (tmp_path / f"test_{page.stem.replace('-', '_')}_{number}.py").write_text(text)
                count += 1
    assert count >= 5
    run(tmp_path, "--perf-update")
    run(tmp_path, "--perf-strict", "-m", "not timing")
