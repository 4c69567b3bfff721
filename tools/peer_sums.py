"""Print what another tool says of a trace, as JSON. `check_show.py` runs it with an interpreter that has the tools:

python tools/peer_sums.py hta|tracelens FILE

Both count one GPU per file. Times are in microseconds: `sum` of the kernels, `busy`, `idle` between the first and the
last record, and `communication` that no other kernel covers.
"""

from __future__ import annotations

import json
import os
import sys


def hta(path: str) -> dict[str, float]:
    """Ask HolisticTraceAnalysis."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it cuts both ends of each record to a microsecond
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: os.path.abspath(path)}, include_last_profiler_step=True)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6, include_memory_kernels=False)
    time = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    exposed = kinds[kinds["kernel_type"] == "COMMUNICATION"]["sum"].sum()
    busy = time["compute_time(us)"] + time["non_compute_time(us)"]
    return {
        "sum": kernels["sum (us)"].sum(),
        "busy": busy,
        "idle": time["idle_time(us)"],
        "communication": exposed,
    }


def tracelens(path: str) -> dict[str, float]:
    """Ask TraceLens."""
    from TraceLens import TreePerfAnalyzer

    analyzer = TreePerfAnalyzer.from_file(path, include_unlinked_kernels=True)
    rows = analyzer.get_df_gpu_timeline()
    time = {kind: 1e3 * ms for kind, ms in zip(rows["type"], rows["time ms"], strict=True)}
    kernels = [event["dur"] for event in analyzer.tree.events if event.get("cat") == "kernel"]
    return {
        "sum": sum(kernels),
        "busy": time["busy_time"],
        "idle": time["idle_time"],
        "communication": time["exposed_comm_time"],
    }


if __name__ == "__main__":
    found = {"hta": hta, "tracelens": tracelens}[sys.argv[1]](sys.argv[2])
    print(json.dumps({key: float(value) for key, value in found.items()}))
