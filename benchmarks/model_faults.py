"""Whether twelve regressions of models that users report are red, and what the failure says first: structure, on any device.

    python benchmarks/model_faults.py          needs transformers; prints each workload, its cause and its line of code

It records a suite without the faults in a temporary folder, and runs it with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelgauge.report.findings import reasons
from kernelgauge.results import read_results

MODEL = """
import os
from functools import partial

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

FAULTY = "FAULTY" in os.environ
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256}


class Model(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault if FAULTY else ""


class Prefill(Model):
    def __init__(self, fault):
        super().__init__(fault)
        attention = "eager" if self.fault == "eager_attention" else "sdpa"
        self.model = LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation=attention)).eval()

    def forward(self, ids):
        logits = self.model(ids, use_cache=False, logits_to_keep=0 if self.fault == "all_logits" else 1).logits
        if self.fault == "upcast":
            logits = logits.double()
        return logits.argmax(-1).float()


class Decode(Model):
    def __init__(self, fault):
        super().__init__(fault)
        self.model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()

    def forward(self, ids, cache):
        if self.fault == "no_cache":
            return self.model(torch.cat([ids] * 8, 1), use_cache=False).logits[:, -1:]
        logits = self.model(ids, past_key_values=cache).logits
        if self.fault == "item" and logits[0, 0, 0].item() > 1e9:
            logits = logits + 1
        return logits


def tokens(decode):
    cache = DynamicCache()
    with torch.no_grad():
        decode.model(torch.randint(256, (1, 8)), past_key_values=cache)
    for _ in range(3):
        yield torch.randint(256, (1, 1)), cache


class Loss(Model):
    def __init__(self, fault):
        super().__init__(fault)
        self.model = LlamaForCausalLM(LlamaConfig(**SIZES)).train()
        if self.fault == "checkpoint":
            self.model.gradient_checkpointing_enable()

    def forward(self, ids):
        return self.model(ids, labels=ids, use_cache=False)


class Autocast(Model):
    def __init__(self, fault):
        super().__init__(fault)
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=self.fault != "autocast_cache"):
            for _ in range(3):
                x = self.linear(x)
        return x.float().pow(2).mean()


class Layer(Model):
    def __init__(self, fault, number):
        super().__init__(fault)
        self.number, self.linear = number, nn.Linear(32, 32)

    def forward(self, x):
        x = torch.relu(self.linear(x))
        if self.fault == "graph_break":
            torch._dynamo.graph_break()
        if self.fault == "recompile":
            x = x * (self.number + 1)
        return x


class Stack(Model):
    def __init__(self, fault):
        super().__init__()
        self.layers = nn.ModuleList([Layer(fault, number) for number in range(10)])
        if fault == "recompile":
            for layer in self.layers:
                layer.compile()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Convolution(Model):
    def __init__(self, fault):
        super().__init__(fault)
        self.convolution = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)

    def forward(self, x):
        x = x.to(memory_format=torch.channels_last)
        if self.fault == "channels_last":
            x = x.contiguous()
        return self.convolution(x)


class Dropout(Model):
    def __init__(self, fault):
        super().__init__(fault)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.Linear(64, 32))
        self.train(self.fault == "dropout")

    def forward(self, x):
        return self.layers(x)
"""
SUITE = """
from functools import partial

import torch
from kernelgauge import Training, Workload
from model import FAULTY, Autocast, Convolution, Decode, Dropout, Loss, Prefill, Stack, tokens

ADAMW = partial(torch.optim.AdamW, lr=1e-3)


def ids():
    return (torch.randint(256, (1, 16)),)


def rows():
    return (torch.randn(8, 32),)


def images():
    return (torch.randn(2, 8, 16, 16),)


def pytest_kernelgauge_workloads():
    def workload(fault, model, inputs, **fields):
        return Workload(fault, "planted", partial(model, fault), inputs, **{"dtype": "fp32"} | fields)

    def step(fault, model, inputs, training=Training(ADAMW), **fields):
        return workload(fault, model, inputs, pass_="step", training=training, **fields)

    return [
        *(workload(fault, Prefill, ids) for fault in ("eager_attention", "all_logits", "upcast")),
        *(workload(fault, Decode, tokens) for fault in ("no_cache", "item")),
        step("foreach", Loss, ids, Training(partial(ADAMW, foreach=not FAULTY))),
        step("checkpoint", Loss, ids),
        step("autocast_cache", Autocast, rows, dtype=None),
        workload("graph_break", Stack, rows, compile={}),
        workload("recompile", Stack, rows),
        workload("channels_last", Convolution, images),
        workload("dropout", Dropout, rows),
    ]
"""
TESTS = """
from kernelgauge.standard import test_device_time
from kernelgauge.standard import test_kernels_and_graphs_are_as_declared, test_structure_is_that_of_the_baseline
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"model.py": MODEL, "conftest.py": SUITE, "test_all.py": TESTS, "pytest.ini": "[pytest]\n"}
        for file, text in files.items():
            (folder / file).write_text(text)

        def run(*command: str, **environment: str) -> None:
            own = {**os.environ, **environment}
            subprocess.run(
                [sys.executable, "-m", *command], cwd=folder, env=own, stdout=subprocess.DEVNULL, check=False
            )

        suite = ("pytest", "-p", "kernelgauge.plugin", "-q")
        run(*suite, "-o", "kernelgauge_replicates=2")
        run("kernelgauge", "accept", "--force")  # no latency was measured, and times do not matter here
        run(*suite, "-m", "structure", FAULTY="1")
        results = read_results(folder / "reports" / "latest" / "results.json")
    red = 0
    for workload in results.workloads:
        failing = [verdict for verdict in workload.verdicts if verdict.status.fails]
        lines = [line for verdict in failing for line in reasons(verdict)]
        first = {line.label: line.text.partition("\n")[0] for line in reversed(lines)}
        red += bool(failing)
        status = failing[0].status.value if failing else "PASS"
        print(f"{workload.module:<16} {status:<10} {first.get('cause', '-')}\n{'':28}{first.get('code', '-')}")
    print(f"{red} of {len(results.workloads)} are red")


if __name__ == "__main__":
    main()
