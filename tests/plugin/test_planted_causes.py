"""Real regressions of a small suite on the CPU: the cause comes first, then the module and the line. `tests/gpu` has more."""

from __future__ import annotations

from pathlib import Path

from tests.planted import failure, line_of, longest_failure, run_suite

PLANTED = {
    "clone-eager-forward": ("1 new kernel: clone", "mlp", "u = u.clone()"),
    "more_work-eager-train": (
        "6 new kernels, in 2 places: sigmoid, mul",
        "mlp (forward and backward)",
        "h = h * torch.sigmoid(h)",
    ),
    "graph_break-compiled-forward": ("graph break: ", "mlp", "torch._dynamo.graph_break()"),
    "loop_break-compiled-forward": ("graph break: ", "mlp", 'print(end="")'),  # Dynamo leaves all of `forward` alone
    "item-compiled-forward": ("graph break: ", "mlp", "u[0, 0, 0].item()"),  # and warns of it
    "contiguous-compiled-forward": ("another kernel: cpp_fused_", "mlp", "u = u.transpose(1, 2).contiguous()"),
}


def test_failure_names_the_cause_first_and_the_line_second(tmp_path: Path) -> None:
    said, results = run_suite(tmp_path, [*PLANTED, "error-eager-forward"], "-m", "not timing")
    for workload, (cause, module, code) in PLANTED.items():
        found = failure(results, workload)
        assert found.cause.startswith(cause), found
        assert found.code.startswith(f"{module}  {line_of(code)}  "), found
    longest = longest_failure(said)
    assert len(longest) <= 12, "\n".join(longest)
    assert "profiler_st" not in said  # libkineto says that to the standard error
    assert "torch/_dynamo/" not in said  # and Dynamo this, to the log too
    assert "torch._dynamo.variables" not in said
    assert said.count(f"{line_of('h = h.view')} in forward: h = h.view(-1, 3, 7)") == 1
