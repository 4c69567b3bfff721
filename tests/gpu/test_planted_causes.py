"""Each planted cause is named first, with its module and its line: what a clock, a kernel or a
count shows of it comes after.
"""

import pytest
import torch

from kernelgauge.results import Results
from tests.planted import failure, line_of, run_suite

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

MLP = "mlp"
PLANTED = {
    "clone-eager-forward": ("aten::clone: Memcpy DtoD", MLP, "u = u.clone()"),
    "item-eager-forward": ("the host waits: aten::item: cudaStreamSynchronize", MLP, "u[0, 0, 0].item()"),
    "wait-eager-forward": ("the host waits: cudaDeviceSynchronize", MLP, "torch.cuda.synchronize()"),
    "math_attention-eager-forward": ("18 kernels instead of 1", "attention", "y = F.scaled_dot_product_attention(q, k, v)"),
    "fp32_norm-eager-forward": ("16 kernels instead of 2, in 2 places", "{norm1,norm2}", "y = "),
    "fp32_norm-compiled-forward": ("2 other kernels, in 2 places", "{norm1,norm2}", "y = "),
    "more_work-eager-train": ("6 new kernels", "mlp (forward and backward)", "h = h * torch.sigmoid(h)"),
    "more_work-compiled-forward": ("another kernel", MLP, "h = h * torch.sigmoid(h)"),
    "contiguous-compiled-forward": ("another kernel", MLP, "u = u.transpose(1, 2).contiguous()"),
    "graph_break-compiled-forward": ("graph break: ", MLP, "torch._dynamo.graph_break()"),
    "item-compiled-forward": ("graph break: ", MLP, "u[0, 0, 0].item()"),
    "recompile-compiled-forward": ("recompile: ", MLP, 'if self.fault == "recompile"'),
    "hook-eager-forward": ("1 new kernel", "mlp.up", "return output * 1.5"),
    "cast_backward-eager-train": ("2 new kernels", "", "u = CastBackward.apply(u)"),
    "custom_op-eager-forward": ("1 new kernel, by planted::squash: squash_kernel", MLP, "u = squash(u)"),
    "custom_op-compiled-forward": ("1 new kernel, by planted::squash: squash_kernel", MLP, "u = squash(u)"),
    "grad-eager-train": ("", "mlp (forward and backward)", "u = torch.func.grad("),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_suite(tmp_path_factory.mktemp("planted"), [*PLANTED, "dynamic-compiled-forward"])[1]


@pytest.mark.parametrize("workload", PLANTED)
def test_failure_names_the_cause_first_and_the_line_second(ran: Results, workload: str) -> None:
    cause, module, code = PLANTED[workload]
    found = failure(ran, workload)
    assert found.cause.startswith(cause), found
    place, _, rest = found.code.partition("  ")
    assert rest.startswith(module), found
    lines = (
        {line_of(code)}
        if code != "y = "
        else {line_of("y = x.float()"), line_of("y = y * torch.rsqrt")}
    )
    assert place in lines, found


def test_kernels_of_dynamic_shapes_have_lines(ran: Results) -> None:
    (run,) = (each.run for each in ran.workloads if each.id.startswith("dynamic-"))
    assert run is not None
    assert run.origins
    assert None not in run.origins
    assert any(each.is_dynamic for each in run.origins if each is not None)
