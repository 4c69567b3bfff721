"""HolisticTraceAnalysis, three ways: python holistic.py json|ijson|analysis TRACE

`json` is its parser alone as it comes. `ijson` is its parser alone with the backend that its source recommends for the
best results and the shortest list of arguments that it offers; it needs the package ijson. `analysis` is
`TraceAnalysis`, through which its documentation goes; it also aligns and filters the events.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h

# By default it cuts both ends of every event to whole microseconds: sums of kernels lose a percent or two.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"


def reader(way: str) -> Callable[[str], tuple[Any, Any]]:
    """What reads a trace: to a DataFrame of events and the table of their names. Only what it needs is imported."""
    if way == "analysis":
        from hta.trace_analysis import TraceAnalysis

        def analyse(trace: str) -> tuple[Any, Any]:
            analysis = TraceAnalysis(trace_files={0: trace}, include_last_profiler_step=True)
            return analysis.t.get_trace(0), analysis.t.symbol_table

        return analyse

    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserBackend, ParserConfig

    config = ParserConfig.get_default_cfg()
    if way == "ijson":
        import ijson

        if "yajl" not in ijson.backend:
            raise ImportError(f"ijson without yajl, its fast backend: {ijson.backend}")
        config = ParserConfig(ParserConfig.get_minimum_args())
        config.set_parser_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
    return lambda trace: parse_trace_dataframe(trace, config)[1:]


def main(way: str, trace: str) -> int:
    try:
        read = reader(way)
    except ImportError as error:
        print(f"{error} (pip install HolisticTraceAnalysis ijson)", file=sys.stderr)
        return _UNAVAILABLE
    start = time.perf_counter()
    events, symbols = read(trace)
    durations = events[events["cat"] == symbols.get_sym_id_map()["kernel"]].groupby("name")["dur"]
    found = durations.agg(["count", "sum"]).sort_values("sum", ascending=False)
    names = symbols.get_sym_table()
    kernels = [
        {"name": names[name], "launches": int(launches), "device_time_us": float(us)}
        for name, launches, us in found.itertuples(name=None)
    ]
    seconds = time.perf_counter() - start
    json.dump({"kernels": kernels, "work_seconds": seconds}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
