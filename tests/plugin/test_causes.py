"""What a failure says of a change in real code on the CPU: one cause for one change, at its line
and at no other.
"""

import re
from pathlib import Path

import pytest

from kernelgauge.judge import STRUCTURE
from kernelgauge.results import read_results
from tests.builders import reasons
from tests.plugin.inner_project import Run, text_of

pytestmark = pytest.mark.timeout(300)

SUITE = """
import copy, os, tempfile
from contextlib import nullcontext
import pytest, torch, torch.distributed as dist
from torch import nn

LOST = "LOST" in os.environ
pytestmark = pytest.mark.kernelgauge(timing=False)

def deep(width=8):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(6)])

def test_loop_of_ops(kernelgauge):
    model = deep()
    shadow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    @torch.no_grad()
    def update():
        if not LOST:
            return torch._foreach_lerp_(list(shadow.parameters()), list(model.parameters()), 0.01)
        for old, new in zip(shadow.parameters(), model.parameters()):
            old.copy_(old * 0.99 + 0.01 * new)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        update()
        return loss.detach()

    kernelgauge(step, torch.randn(4, 8))

@pytest.fixture
def group():
    store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()

def test_reduced_each_time(kernelgauge, group):
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))

    def step(x):
        total = 0.0
        for number, part in enumerate(x):
            with nullcontext() if LOST or number == 3 else ddp.no_sync():
                loss = ddp(part).square().mean()
                loss.backward()
            total = total + loss.detach()
        ddp.zero_grad()
        return total

    kernelgauge(step, torch.randn(4, 4, 8))

def test_reduced_one_by_one(kernelgauge, group):
    def step(*parts):
        if LOST:
            for part in parts:
                dist.all_reduce(part)
        else:
            flat = torch.cat(parts)
            dist.all_reduce(flat)
        return parts

    kernelgauge(step, *(torch.randn(8) for _ in range(10)))

def test_cast_again(kernelgauge):
    weight = torch.randn(16, 16)

    def halved(x):
        return (x / x.abs().amax()).to(torch.bfloat16)

    def step(x):
        for number in range(4):
            if LOST or number == 0:
                kept = (weight / weight.abs().amax()).to(torch.bfloat16)
            y = halved(x)
            x = (y @ kept).float() + number * 2
        return x

    kernelgauge(step, torch.randn(8, 16))

def test_gradients_kept(kernelgauge):
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if not LOST:
            optimizer.zero_grad()
        return loss.detach()

    kernelgauge(step, torch.randn(4, 8))

class Steps:
    def __init__(self):
        self.model, self.history, self.total = deep(), [], 0.0

    def loss(self, x):
        return self.model(x).square().mean()

    def listed(self, x):
        loss = self.loss(x)
        self.history.append(loss if LOST else loss.detach())
        return loss.detach()

    def summed(self, x):
        loss = self.loss(x)
        loss.backward(retain_graph=True)
        self.model.zero_grad()
        self.total = self.total + (loss if LOST else loss.detach())
        return loss.detach()

def test_list_of_losses(kernelgauge):
    kernelgauge.using(pass_="call")(Steps().listed, torch.randn(4, 8))

def test_sum_of_losses(kernelgauge):
    kernelgauge.using(pass_="call")(Steps().summed, torch.randn(4, 8))

def test_no_longer_detached(kernelgauge):
    model = deep()

    def call(x):
        losses = []
        for _ in range(3):
            loss = model(x).square().mean()
            if not LOST:
                loss = loss.detach()
            losses.append(loss)
        return torch.stack(losses).mean()

    kernelgauge.using(pass_="call")(call, torch.randn(4, 8))

class Layer(nn.Module):
    def forward(self, x):
        return x.sin() * 2

def test_recorded_by_autograd(kernelgauge):
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def tiles(x):
        with nullcontext() if LOST else torch.no_grad():
            return sum(layers(part) for part in x.chunk(4))

    kernelgauge(tiles, torch.randn(1024, 64))

def test_kept_longer(kernelgauge):
    def call(x):
        part = x[:1536] * 2
        if not LOST:
            del part
        return x * 2

    kernelgauge(call, torch.randn(49152))

def test_compiled_no_more(kernelgauge):
    layer = Layer()
    if not LOST:
        layer.compile(backend="aot_eager")
    kernelgauge(layer, torch.randn(4, 8))

def test_op_without_effect(kernelgauge):
    def call(x):
        y = x.sin()
        if LOST:
            z = y.cos()
        return y * 2

    kernelgauge.using(compile={})(call, torch.randn(4, 8))

# A graph break in both runs, below a kernel of twelve lines of code.
def test_break_at_an_edited_line(kernelgauge):
    def call(x):
        x = x.sin()
        x = x.cos()
        x = x.tanh()
        x = x.exp()
        x = x.sigmoid()
        x = x.relu()
        x = x.abs()
        x = x.neg()
        x = x * 0.5
        x = x + 2
        if LOST:
            total = x.double().sum().item()
        else:
            total = x.sum().item()
        torch._dynamo.graph_break()
        return x.cos(), total

    kernelgauge.using(compile={})(call, torch.randn(4, 8))

def test_other_overload(kernelgauge):
    def call(x):
        if LOST:
            y = torch.sort(x, stable=True)
        else:
            y = torch.sort(x)
        return torch.sort(x.sin(), stable=True), y

    kernelgauge(call, torch.randn(4, 8))

def decoded(step):
    embed, layers = nn.Embedding(16, 8), deep()
    head = nn.Linear(8, 16)

    @torch.no_grad()
    def generate(tokens):
        new = tokens
        for _ in range(3):
            token = step(head(layers(embed(new)))[-1:], tokens)
            tokens = torch.cat([tokens, token])
            new = tokens if LOST else token
        return tokens

    return generate

def test_decoded_whole(kernelgauge):
    kernelgauge(decoded(lambda logits, _: logits.argmax(-1)), torch.arange(4))

def test_decoded_by_an_edited_line(kernelgauge):
    def step(logits, tokens):
        if LOST:
            logits = logits * 2
        return logits.argmax(-1)

    kernelgauge(decoded(step), torch.arange(4))
"""
FOUR_TIMES = (
    "16 mul_out instead of 4, 4 allreduce_ instead of 1, 16 copy_bucket_to_grad instead of 4"
)
LONGER = "input dimensions 1 -> 5, 1 -> 6 in 28 kernels\nembedding x2, addmm x14, layer_norm x12"
KERNEL = "abs_add_cos_exp_mul_neg_relu_sigmoid_sin_sum_tanh_0"
TOKEN = "token = step(head(layers(embed(new)))[-1:], tokens)"
ONLY = {
    "loop_of_ops": (
        ["96 kernels instead of 1: mul x48, add x24, copy_ x24\nwas _foreach_lerp_\nin all 50 mul instead of 2"],
        ["old.copy_(old * 0.99 + 0.01 * new)"],
    ),
    "reduced_each_time": (
        [f"27 new kernels: mul_out x12, allreduce_ x3, copy_bucket_to_grad x12\nin all {FOUR_TIMES}"],
        ["loss.backward()"],
    ),
    "reduced_one_by_one": (
        ["10 kernels instead of 2: allreduce_ x10\nwas cat, allreduce_\nin all 10 allreduce_ instead of 1"],
        ["dist.all_reduce(part)"],
    ),
    "cast_again": (
        ["12 new kernels: abs x3, amax x3, div x3, copy_ x3"],
        ["kept = (weight / weight.abs().amax()).to(torch.bfloat16)"],
    ),
    "gradients_kept": (["gradients are added to those of the last call: they are no longer dropped"], []),
    "list_of_losses": (["each call leaves 1.7 kB more in memory"], ["self.history.append(loss if LOST else loss.detach())"]),
    "sum_of_losses": (
        ["each call leaves 1.7 kB more in memory"],
        ["self.total = self.total + (loss if LOST else loss.detach())"],
    ),
    # the line is gone
    "no_longer_detached": (["the graph of autograd is kept: a tensor is no longer detached\n60 -> 62 autograd nodes"], []),
    "recorded_by_autograd": (["autograd records the call: has a no_grad, inference_mode or detach gone?"], ["return sum(layers(part) for part in x.chunk(4))"]),
    "kept_longer": (
        ["peak memory 196.6 kB -> 202.8 kB (+6.1 kB)\n6.1 kB of it at the first line below"],
        ["part = x[:1536] * 2"],
    ),
    "compiled_no_more": (["nothing is compiled any more: each op runs by itself"], []),
    "decoded_whole": ([LONGER], [TOKEN]),
    # What is new at an edited line stands before what more kernels have.
    "decoded_by_an_edited_line": (
        ["3 new kernels: mul x3", LONGER],
        ["logits = logits * 2", TOKEN],
    ),
    "break_at_an_edited_line": (
        [f"another kernel: cpp_fused__to_copy_{KERNEL}\nwas cpp_fused_{KERNEL}"],
        ["total = x.double().sum().item()"],
    ),
    "other_overload": (
        ["stable (none) -> True in 1 kernel\nsort"],
        ["y = torch.sort(x, stable=True)"],
    ),
    "op_without_effect": (["torch.compile was given 3 ops instead of 2\nnew: cos"], ["z = y.cos()"]),
}  # fmt: skip


def test_cause_stands_alone_at_the_line_that_changed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_ops=SUITE)

    def run(*arguments: str) -> str:
        return text_of(pytester.runpytest_inprocess("-q", *arguments))

    run("--perf-update")
    monkeypatch.setenv("LOST", "1")
    said = run()
    lines = (pytester.path / "test_ops.py").read_text().splitlines()
    results = read_results(Path("reports/latest/results.json"))
    verdicts = [
        verdict
        for each in results.workloads
        for verdict in each.verdicts
        if verdict.subject == STRUCTURE
    ]
    found = {verdict.workload.removeprefix("test_ops-test_"): verdict for verdict in verdicts}
    assert [name for name, verdict in found.items() if not verdict.status.fails] == [
        "op_without_effect"
    ], said
    for name, (causes, codes) in ONLY.items():
        named = reasons(found[name], "cause") + reasons(found[name], "also")
        numbers = re.findall(
            r"test_ops.py:(\d+)", "\n".join([*reasons(found[name], "code"), *named])
        )
        assert named == causes, said
        assert [lines[int(number) - 1].strip() for number in numbers] == codes, said


SIX_LINES = "\n".join(f"    x = x.sin() * {number}" for number in range(2, 8))
SIX_EDITS = f"""
import pytest, torch

pytestmark = pytest.mark.kernelgauge(timing=False)

def several(x):
{SIX_LINES}
    return x

def test_several(kernelgauge):
    kernelgauge(several, torch.randn(4, 8))
"""


def test_failure_keeps_counts_and_names_the_option_that_shows_all(
    pytester: pytest.Pytester,
) -> None:
    def run(*arguments: str) -> str:
        return text_of(pytester.runpytest_inprocess(*arguments))

    pytester.makepyfile(test_six=SIX_EDITS)
    run("--perf-update")
    pytester.makepyfile(test_six=SIX_EDITS.replace("sin()", "sin().exp()"))
    assert re.search(r"  counts   launches 12 -> 18, .*\n  more .* with pytest -v\n", run())
    said = run("-q")
    assert re.search(r"  counts   launches 12 -> 18, .*\n  more .* with pytest -vv\n", said)
    assert "  more " not in run("-q", "-vv")


STEP = """
import pytest, torch
from torch import nn

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    kernelgauge(step, torch.randn(4, 8))
"""


def test_deleted_line_that_dropped_gradients_is_shown(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_step=STEP)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(test_step=STEP.replace("optimizer.zero_grad()", ""))
    said = run()
    assert "cause    gradients are added to those of the last call" in said
    assert re.search(r"code +optimizer.zero_grad\(\)  \(1 -> 0 times\)", said)
