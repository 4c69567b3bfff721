"""Record a prompt and the decode of Qwen3 0.6B by vLLM or SGLang, or a training step in JAX, on a GPU.

    python benchmarks/serving.py {vllm,sglang,jax} FILE.json.gz [--seed N] [--batches] [--eager] [--triton]

Weights are random, so nothing is downloaded. `--seed` draws the prompts: 16 of 60 to 299 tokens. Each of them decodes 24 tokens;
with `--batches` 24 requests decode 4 to 47, 16 at a time. Each package needs an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
VLLM = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
WIDTH, HIDDEN, LAYERS, ROWS = 1024, 4096, 4, 512  # of the MLPs in JAX


def requests(chance: random.Random, count: int, *, batches: bool) -> tuple[list[list[int]], list[int]]:
    """Return prompts, and how many tokens each decodes."""
    prompts = [[chance.randrange(100, 150_000) for _ in range(chance.randrange(60, 300))] for _ in range(count)]
    return prompts, [chance.randrange(4, 48) if batches else 24 for _ in prompts]


def profile(server: Any, serve: Callable[[list[list[int]], list[int]], None], options: argparse.Namespace) -> None:
    """Warm the server up, and record one more round of requests."""
    chance = random.Random(options.seed)
    for _ in range(2):
        serve(*requests(chance, 16, batches=False))
    server.start_profile()
    serve(*requests(chance, 24 if options.batches else 16, batches=options.batches))
    server.stop_profile()


def record_vllm(model: str, folder: str, options: argparse.Namespace) -> None:
    os.environ.update(VLLM)
    from vllm import LLM, SamplingParams

    profiler = {"profiler": "torch", "torch_profiler_dir": folder, "torch_profiler_with_stack": False}
    changes: dict[str, Any] = {"attention_backend": "TRITON_ATTN"} if options.triton else {}
    server = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, gpu_memory_utilization=0.3,
                 max_num_seqs=16 if options.batches else 32, enforce_eager=options.eager, profiler_config=profiler,
                 **changes)  # fmt: skip

    def serve(prompts: list[list[int]], lengths: list[int]) -> None:
        several = [
            SamplingParams(max_tokens=each, ignore_eos=True, detokenize=False, temperature=0.0) for each in lengths
        ]
        server.generate([{"prompt_token_ids": each} for each in prompts], several, use_tqdm=False)

    profile(server, serve, options)


def record_sglang(model: str, folder: str, options: argparse.Namespace) -> None:
    os.environ.update(SGLANG_TORCH_PROFILER_DIR=folder, HF_HUB_OFFLINE="1")
    import sglang

    server = sglang.Engine(model_path=model, load_format="dummy", skip_tokenizer_init=True, attention_backend="triton",
                            sampling_backend="pytorch", grammar_backend="none", mem_fraction_static=0.3,
                            context_length=2048, cuda_graph_max_bs=32, disable_radix_cache=True, dtype="bfloat16",
                            disable_cuda_graph=options.eager)  # fmt: skip

    def serve(prompts: list[list[int]], lengths: list[int]) -> None:
        several = [{"max_new_tokens": each, "ignore_eos": True, "temperature": 0.0} for each in lengths]
        server.generate(input_ids=prompts, sampling_params=several)

    profile(server, serve, options)
    time.sleep(2)  # it writes the file in another process
    server.shutdown()


def record_jax(folder: str) -> None:
    import jax
    import optax
    from jax import numpy

    keys = jax.random.split(jax.random.key(0), 2 * LAYERS)
    shapes = [(WIDTH, HIDDEN), (HIDDEN, WIDTH)] * LAYERS
    weights = [jax.random.normal(key, shape, numpy.bfloat16) * 0.02 for key, shape in zip(keys, shapes, strict=True)]

    def loss(weights: list[Any], x: Any) -> Any:
        out = x
        for layer in range(LAYERS):
            wide = out.astype(numpy.float32)
            normed = (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)
            out = out + jax.nn.gelu(normed @ weights[2 * layer]) @ weights[2 * layer + 1]
        return ((out - x).astype(numpy.float32) ** 2).mean()

    optimizer = optax.adamw(1e-3)

    def step(weights: list[Any], state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    step = jax.jit(step)
    state, x = optimizer.init(weights), jax.random.normal(jax.random.key(1), (ROWS, WIDTH), numpy.bfloat16)
    value: Any = x
    for number in range(15):
        if number == 5:
            value.block_until_ready()
            jax.profiler.start_trace(folder)
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights, state, value = step(weights, state, x)
    value.block_until_ready()
    jax.profiler.stop_trace()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=("vllm", "sglang", "jax"))
    parser.add_argument("file", type=Path, metavar="FILE.json.gz")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("--batches", "--eager", "--triton"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, traces = Path(folder, "model"), str(Path(folder, "traces"))
        model.mkdir()
        (model / "config.json").write_text(json.dumps(QWEN3))
        if options.package == "jax":
            record_jax(traces)
        else:
            record = record_vllm if options.package == "vllm" else record_sglang
            record(str(model), traces, options)
        (found,) = Path(traces).rglob("*.json.gz")
        shutil.copy(found, options.file)


if __name__ == "__main__":
    main()
