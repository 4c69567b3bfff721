"""Training steps on several processes, and a trace of each rank: data parallel (DDP) or sharded
(FSDP2).

    torchrun --nproc-per-node 2 examples/distributed/train.py --traces /tmp/usual
    kernelgauge check-trace --update /tmp/usual/run*/rank*.json.gz --baselines /tmp/ddp.json
    torchrun --nproc-per-node 2 examples/distributed/train.py --traces /tmp/lost --lose-overlap late
    kernelgauge check-trace /tmp/lost/run0/rank*.json.gz --baselines /tmp/ddp.json

It runs with NCCL on GPUs, and with Gloo on a CPU. `--lose-overlap late` reduces the gradients of
DDP after the backward pass. `--lose-overlap wait` launches the same kernels in the same order, and
the backward pass waits for each reduction; each block of FSDP2 reads a value back.
"""

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

ON_GPU = torch.cuda.is_available()
WIDTH, ROWS, BLOCKS = (2048, 4096, 8) if ON_GPU else (64, 32, 4)
BUCKET_MB = 32 if ON_GPU else 0.05  # several buckets: with one, nothing overlaps
WARM_UP, STEPS = 2, 4


class Block(nn.Module):
    """A norm and an MLP with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.reads_back = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        if self.reads_back and x.detach().abs().amax().item() > 1e30:
            raise FloatingPointError("diverged")
        return x


def reduce_and_wait(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Do what `allreduce_hook` does with a bucket of gradients, and let the backward pass wait for
    it.
    """
    gradients = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(gradients)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def record(step: Callable[[], None], folder: Path) -> None:
    """Write a trace of a few steps for this rank."""
    dist.barrier()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank{dist.get_rank()}.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if ON_GPU else []),
        schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(WARM_UP + STEPS):
            step()
            profiler.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--runs", type=int, default=3, help="traces of each rank")
    parser.add_argument("--lose-overlap", choices=("late", "wait"))
    options = parser.parse_args()

    device = torch.device("cpu")
    if ON_GPU:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if ON_GPU else "gloo", device_id=device if ON_GPU else None)
    torch.manual_seed(0)
    blocks = [Block() for _ in range(BLOCKS)]
    model = nn.Sequential(*blocks).to(device)
    if options.parallel == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        model.register_comm_hook(
            None, reduce_and_wait if options.lose_overlap == "wait" else allreduce_hook
        )
    else:
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for block in blocks:
            block.reads_back = options.lose_overlap == "wait"
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    reduces_late = options.lose_overlap == "late" and options.parallel == "ddp"
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(ROWS, WIDTH, device=device)

    def step() -> None:
        with model.no_sync() if reduces_late else nullcontext():
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
        if reduces_late:
            for parameter in model.parameters():
                dist.all_reduce(
                    parameter.grad, op=dist.ReduceOp.AVG if ON_GPU else dist.ReduceOp.SUM
                )
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    for run in range(options.runs):
        record(step, options.traces / f"run{run}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
