"""The compiled code of three kernels, for GPUs that this machine does not have (docs/regressions.md)."""

import kernels
import pytest
import torch

CHOICES = [2, 4, 8]  # of an autotuner, in warps


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_layer_norm(kernelgauge, target):
    x, weight = empty(4096, 15360, dtype=torch.float16), empty(15360, dtype=torch.float16)
    run = kernelgauge.using(target=target)
    run(kernels.layer_norm, x, weight, weight, num_warps=16, num_stages=2)


@pytest.mark.parametrize("keys", [64, 32])
def test_attention(kernelgauge, keys):
    q, k, v = empty(4096, 576), empty(4096, 576), empty(4096, 512)
    run = kernelgauge.using(target="gfx950")
    run(kernels.attention, q, k, v, block=(64, keys), num_warps=4, num_stages=1)


def test_gathered_attention(kernelgauge):
    q, cache, index = empty(24, 16, 512), empty(65536, 512), empty(24, 4224, dtype=torch.int32)
    run = kernelgauge.using(target="sm_100")
    run(kernels.gathered_attention(CHOICES), q, cache, index)
