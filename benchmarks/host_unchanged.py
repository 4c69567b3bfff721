"""How often unchanged code is red by host work: layers, whole models, training steps, loaders.

    pip install transformers timm torchvision diffusers
    python benchmarks/host_unchanged.py

One process records 201 workloads. Five others, with three hash seeds and in other orders, are judged
by it. It counts host work as a measurement does, and nothing else of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import random
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from kernelgauge import Workload
from kernelgauge.judge.host import is_host_loss, work_total
from kernelgauge.measure.device import Device
from kernelgauge.measure.host import HostWork, host_work_of
from kernelgauge.measure.instance import build, warm_up

# as the plugin does: filelock has hooks that run at each fork, of a loader's workers too
import kernelgauge.results.files  # noqa: F401  isort: skip

SEEDS = ("1", "2", "3", "1", "2")
Case = tuple[Callable[..., Any], tuple[Any, ...]]
randn = torch.randn


def ids(*size: int) -> torch.Tensor:
    return torch.randint(20, size)


LAYERS: dict[str, Callable[[], Case]] = {
    "linear": lambda: (nn.Linear(8, 8), (randn(2, 8),)),
    "bilinear": lambda: (nn.Bilinear(4, 5, 6), (randn(3, 4), randn(3, 5))),
    "conv1d": lambda: (nn.Conv1d(4, 8, 3), (randn(1, 4, 9),)),
    "conv2d": lambda: (nn.Conv2d(3, 8, 3, padding=1), (randn(1, 3, 8, 8),)),
    "conv3d": lambda: (nn.Conv3d(2, 4, 3), (randn(1, 2, 5, 5, 5),)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 3, 2, 2), (randn(1, 4, 4, 4),)),
    "batch_norm": lambda: (nn.BatchNorm2d(4), (randn(2, 4, 4, 4),)),
    "layer_norm": lambda: (nn.LayerNorm(8), (randn(2, 8),)),
    "group_norm": lambda: (nn.GroupNorm(2, 8), (randn(2, 8, 4),)),
    "rms_norm": lambda: (nn.RMSNorm(8), (randn(2, 8),)),
    "instance_norm": lambda: (nn.InstanceNorm2d(4), (randn(1, 4, 6, 6),)),
    "embedding": lambda: (nn.Embedding(20, 8), (ids(2, 5),)),
    "bag": lambda: (nn.EmbeddingBag(20, 8), (ids(2, 5),)),
    "lstm": lambda: (nn.LSTM(8, 16, 2, batch_first=True), (randn(2, 6, 8),)),
    "gru": lambda: (nn.GRU(8, 16), (randn(6, 2, 8),)),
    "rnn": lambda: (nn.RNN(8, 16, bidirectional=True), (randn(6, 2, 8),)),
    "gru_cell": lambda: (nn.GRUCell(8, 8), (randn(2, 8), randn(2, 8))),
    "attention": lambda: (nn.MultiheadAttention(8, 2), tuple(randn(3, 2, 8) for _ in range(3))),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        (randn(2, 4, 8),),
    ),
    "decoder": lambda: (nn.TransformerDecoderLayer(8, 2, 16), (randn(4, 2, 8), randn(3, 2, 8))),
    "transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16), (randn(4, 2, 8), randn(3, 2, 8))),
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), (randn(2, 8),)),
    "pooled": lambda: (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), (randn(1, 3, 8, 8),)),
    "max_pool": lambda: (nn.MaxPool2d(2), (randn(1, 3, 8, 8),)),
    "upsampled": lambda: (nn.Upsample(scale_factor=2), (randn(1, 3, 4, 4),)),
    "shuffled": lambda: (nn.PixelShuffle(2), (randn(1, 8, 4, 4),)),
    "softmax": lambda: (nn.Softmax(-1), (randn(2, 8),)),
    "prelu": lambda: (nn.PReLU(), (randn(2, 8),)),
    "weight_norm": lambda: (
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        (randn(2, 8),),
    ),
    "spectral_norm": lambda: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        (randn(2, 8),),
    ),
    "cross_entropy": lambda: (nn.CrossEntropyLoss(), (randn(4, 5, requires_grad=True), ids(4) % 5)),
    "mse": lambda: (nn.MSELoss(), (randn(4, 5), randn(4, 5))),
}
OPTIMIZERS = ("SGD Adam AdamW RMSprop Adagrad NAdam Adamax RAdam Adadelta Rprop ASGD").split()
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 64,
    "pad_token_id": 0,
    "head_dim": 8,
}
TINY_VISION = {name: TINY[name] for name in ("num_hidden_layers", "num_attention_heads")}
TINY_VISION |= {"hidden_size": 16, "intermediate_size": 32, "image_size": 64}
TEXT = """
albert bert big_bird bloom camembert ctrl deberta distilbert electra ernie gemma gemma2 glm gpt2
gpt_neox granite helium llama mamba mistral mixtral mpnet mpt olmo olmo2 openai-gpt opt phi phi3 persimmon qwen2
qwen2_moe qwen3 rembert roberta roformer stablelm starcoder2 xglm xlm-roberta
""".split()
GENERATING = "gpt2 llama qwen2 opt gpt_neox mistral phi gemma".split()
VISION = "vit deit beit dinov2 resnet poolformer mobilenet_v2".split()
TIMM = """
resnet10t resnet18 regnetx_002 mobilenetv3_small_050 ghostnet_050 efficientnet_lite0 convnext_atto mobilenetv4_conv_small
hgnetv2_b0 dla46_c mnasnet_small lcnet_035 tinynet_e semnasnet_075 fbnetc_100 repvgg_a0 selecsls42b vovnet39a
""".split()
TORCHVISION = """
resnet18 mobilenet_v3_small mobilenet_v2 squeezenet1_0 efficientnet_b0 shufflenet_v2_x0_5 regnet_y_400mf mnasnet0_5
convnext_tiny googlenet
""".split()
SCHEDULERS = """
DDIMScheduler DDPMScheduler PNDMScheduler EulerDiscreteScheduler EulerAncestralDiscreteScheduler LMSDiscreteScheduler
HeunDiscreteScheduler DPMSolverMultistepScheduler UniPCMultistepScheduler DEISMultistepScheduler
""".split()
OTHERS: dict[str, Callable[[], Case]] = {}


def other(make: Callable[[], Case]) -> Callable[[], Case]:
    OTHERS[make.__name__.strip("_")] = make
    return make


class Texts(Dataset[dict[str, Any]]):
    """Rows of different lengths, made as a data set of texts does."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> dict[str, Any]:
        words = re.sub("[aeiou]", "", f"text number {at}").split()
        return {"text": [hash(word) % 20 for word in words], "label": at % 3}


def padded(rows: list[dict[str, Any]]) -> torch.Tensor:
    longest = max(len(row["text"]) for row in rows)
    return torch.tensor([row["text"] + [0] * (longest - len(row["text"])) for row in rows])


def _loading(**how: Any) -> Case:
    net = nn.EmbeddingBag(20, 8)
    loader = DataLoader(Texts(), batch_size=6, collate_fn=padded, **how)
    return lambda: [net(batch) for batch in loader], ()


LOADERS: dict[str, dict[str, Any]] = {
    "loader": {},
    "loader_shuffled": {"shuffle": True},
    "loader_workers": {"num_workers": 2},
    "loader_kept_workers": {"num_workers": 1, "persistent_workers": True},
    "loader_workers_in_order": {"num_workers": 2, "prefetch_factor": 1},
}
for _name, _how in LOADERS.items():
    OTHERS[_name] = partial(_loading, **_how)


@other
def loader_of_tensors() -> Case:
    net, data = nn.Linear(4, 3), TensorDataset(randn(40, 4), ids(40))
    return lambda: [net(x) for x, _ in DataLoader(data, batch_size=8)], ()


@other
def loader_in_a_step() -> Case:
    net = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(net.parameters())
    loader = DataLoader(TensorDataset(randn(16, 4)), batch_size=8, shuffle=True)

    def epoch() -> None:
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    return epoch, ()


@other
def pool() -> Case:
    def call(x: Any) -> Any:
        with ThreadPoolExecutor(3) as workers:
            return x + 1, list(workers.map(lambda number: (x + number).sum(), range(12)))

    return call, (randn(8),)


@other
def threads_and_a_queue() -> Case:
    def call(x: Any) -> Any:
        waiting: queue.Queue[Any] = queue.Queue()
        found: list[Any] = []

        def work() -> None:
            while (number := waiting.get()) is not None:
                found.append(x * number)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for each in threads:
            each.start()
        for number in (*range(10), None, None):
            waiting.put(number)
        for each in threads:
            each.join()
        return x + 1, sum(found)

    return call, (randn(8),)


@other
def coroutines() -> Case:
    async def one(x: Any, number: int) -> Any:
        await asyncio.sleep(0)
        return x * number

    async def all_of(x: Any) -> Any:
        return await asyncio.gather(*(one(x, number) for number in range(5)))

    return lambda x: asyncio.run(all_of(x)), (randn(8),)


@other
def sets() -> Case:
    names = {f"name {number}" for number in range(30)}
    return lambda x: ([x * len(each) for each in sorted(names)], {*names} & {"name 7"}), (randn(8),)


@other
def set_until_found() -> Case:
    names = {f"name {number}" for number in range(30)}
    return lambda x: (x * 2, any(each == "name 7" for each in names)), (randn(8),)


@other
def generated_by_a_cell() -> Case:
    embed, cell, head = nn.Embedding(20, 16), nn.GRUCell(16, 16), nn.Linear(16, 20)

    def call(token: Any) -> Any:
        state, out = torch.zeros(2, 16), []
        with torch.no_grad():
            for _ in range(8):
                state = cell(embed(token), state)
                token = head(state).argmax(-1)
                out.append(token)
                if bool((token == 3).all()):
                    break
        return out

    return call, (ids(2),)


@other
def sampled() -> Case:
    return lambda x: [torch.multinomial(x.softmax(-1), 1) for _ in range(4)], (randn(2, 8),)


@other
def random_lengths() -> Case:
    draw = random.Random(0)
    return lambda x: (x + 1, [draw.random() for _ in range(draw.randrange(7))]), (randn(4),)


@other
def logged() -> Case:
    log = logging.getLogger("unchanged")

    def call(x: Any) -> Any:
        log.debug("x %s", 1)
        config = json.loads(json.dumps({"scale": 2}))
        return x * config["scale"]

    return call, (randn(4),)


@other
def checkpointed() -> Case:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def call(x: Any) -> None:
        checkpoint(net, x, use_reentrant=False).sum().backward()

    return call, (randn(4, 8),)


@other
def vmapped() -> Case:
    return torch.func.vmap(torch.func.grad(lambda x: x.sin().sum())), (randn(4, 8),)


@other
def autocast() -> Case:
    net = nn.Linear(8, 8)

    def call(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    return call, (randn(4, 8),)


@other
def compiled() -> Case:
    return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU()), backend="eager"), (randn(4, 8),)


@other
def compiled_with_a_break() -> Case:
    def call(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    return torch.compile(call, backend="eager"), (randn(4, 8),)


@other
def compiled_step() -> Case:
    net = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    return lambda x: net(x).sum().backward(), (randn(4, 8),)


def _training(make: Callable[[], Case]) -> Case:
    net, given = make()
    given = tuple(each.requires_grad_() if each.is_floating_point() else each for each in given)

    def step(*given: Any) -> None:
        out = net(*given)
        while isinstance(out, tuple):
            out = out[0]
        out.sum().backward()

    return step, given


def _step(optimizer: str, foreach: bool | None) -> Case:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    chosen = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01, foreach=foreach)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 10_000)

    def step(x: Any) -> None:
        chosen.zero_grad()
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        chosen.step()
        schedule.step()

    return step, (randn(4, 8),)


def _model(kind: str, name: str, tiny: dict[str, int]) -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.AutoConfig.for_model(name, **tiny)
    return getattr(transformers, kind).from_config(config).eval()


def _text(name: str) -> Case:
    return _model("AutoModel", name, TINY), (ids(1, 8),)


def _vision(name: str) -> Case:
    return _model("AutoModel", name, TINY_VISION), (randn(1, 3, 64, 64),)


def _generate(name: str) -> Case:
    model = _model("AutoModelForCausalLM", name, TINY)
    how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return lambda x: model.generate(x, attention_mask=torch.ones_like(x), **how), (ids(1, 5),)


def _timm(name: str) -> Case:
    return import_module("timm").create_model(name).eval(), (randn(1, 3, 64, 64),)


def _torchvision(name: str) -> Case:
    return getattr(import_module("torchvision.models"), name)(weights=None).eval(), (
        randn(1, 3, 64, 64),
    )


def _denoising(name: str) -> Case:
    diffusers: Any = import_module("diffusers")
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
    ).eval()
    scheduler = getattr(diffusers, name)()

    def loop(x: Any) -> Any:
        scheduler.set_timesteps(4)
        with torch.no_grad():
            for time in scheduler.timesteps:
                scaled = scheduler.scale_model_input(x, time)
                x = scheduler.step(unet(scaled, time).sample, time, x).prev_sample
        return x

    return loop, (randn(1, 3, 8, 8),)


CASES: dict[str, Callable[[], Case]] = {
    **{f"layer_{name}": make for name, make in LAYERS.items()},
    **{f"train_{name}": partial(_training, make) for name, make in LAYERS.items()},
    **{f"step_{name}": partial(_step, name, None) for name in OPTIMIZERS},
    **{f"step_loop_{name}": partial(_step, name, False) for name in OPTIMIZERS},
    **{f"text_{name}": partial(_text, name) for name in TEXT},
    **{f"vision_{name}": partial(_vision, name) for name in VISION},
    **{f"generate_{name}": partial(_generate, name) for name in GENERATING},
    **{f"timm_{name}": partial(_timm, name) for name in TIMM},
    **{f"torchvision_{name}": partial(_torchvision, name) for name in TORCHVISION},
    **{f"denoise_{name}": partial(_denoising, name) for name in SCHEDULERS},
    **OTHERS,
}


def count(name: str) -> HostWork:
    """Count the work of a call behind its warm-up."""
    torch.manual_seed(0)
    call, given = CASES[name]()
    workload = Workload(
        name, "unchanged", dtype="fp32", build=lambda: call, inputs=lambda: given, pass_="call"
    )
    device = Device()
    instance = build(workload, device, replicate=0)
    with instance.grad_mode():
        warm_up(device, instance, calls=5, seconds=0)
        return host_work_of(instance, device, is_compiled="compiled" in name)


def count_all(target: Path, order: int) -> None:
    """Count all workloads in one process; `order`: 0: as they stand, else a seed to shuffle them."""
    warnings.simplefilter("ignore")
    logging.disable()
    work, names = {}, list(CASES)
    if order:
        random.Random(order).shuffle(names)
    for name in names:
        found = count(name)
        assert not found.problem, (name, found.problem)
        work[name] = {"work": found.counts, "spread": found.spread, "us": found.us}
    target.write_text(json.dumps(work), "utf-8")


def process(seed: str, order: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what `count` finds of each workload in a process with this hash seed."""
    with TemporaryDirectory() as place:
        target = Path(place, "work.json")
        command = (sys.executable, __file__, str(target), str(order))
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
        found: dict[str, dict[str, dict[str, Any]]] = json.loads(target.read_text("utf-8"))
        return found


def side(
    work: Mapping[str, int], spread: Mapping[str, int], us: Mapping[str, float], ops: Any
) -> Any:
    """Return what the rule asks of a baseline and of a run: the same machine, with the same ops."""
    return SimpleNamespace(
        host_work=work,
        host_spread=spread,
        host_us=us,
        fingerprint=SimpleNamespace(python="3", torch="2"),
        ops=ops,
        counts=SimpleNamespace(graph_breaks=0),
    )


def main() -> None:
    recorded = process("0", order=0)
    calls = sorted(work_total(each["work"]) for each in recorded.values())
    print(f"{len(recorded)} workloads of {calls[0]} to {calls[-1]} calls, {sum(calls)} in all")
    for order, seed in enumerate(SEEDS, 1):
        red, other, varying = [], 0, 0
        for name, found in process(seed, order).items():
            old = recorded[name]
            before = side(old["work"], old["spread"], {}, Counter())
            red += [name] if is_host_loss(before, side(**found, ops=())) else []
            other += found["work"] != old["work"]
            varying += bool(found["spread"] or old["spread"])
        print(f"hash seed {seed}: {len(red)} red {red}, {other} differ, {varying} vary", flush=True)


if __name__ == "__main__":
    count_all(Path(sys.argv[1]), int(sys.argv[2])) if sys.argv[1:] else main()
