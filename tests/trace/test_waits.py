"""The ops behind copies and synchronising calls."""

from __future__ import annotations

from tests.builders import call, event, op, trace_of


def test_window_names_ops_of_copies_and_waits() -> None:
    trace = trace_of(
        op("vllm::other", 0, 50, thread=99),  # on another thread, at the same time
        op("aten::item", 10, 20, external_id=1),
        op("aten::_local_scalar_dense", 12, 10, external_id=2),
        call(7, 13, name="cudaMemcpyAsync", external_id=2),
        call(8, 16, name="cudaStreamSynchronize", external_id=2),
        call(9, 60, name="cudaDeviceSynchronize"),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 14, 1, 7, correlation=7, bytes=4),
    )
    window = trace.whole()
    assert window.copying_ops == [("aten::item: Memcpy DtoH (Device -> Pageable), 4 bytes", 2)]
    assert window.synchronizing_ops == [("aten::item: cudaStreamSynchronize", 2), ("cudaDeviceSynchronize", None)]
