"""Perfetto's trace processor through its Python package: python perfetto_package.py [--trace-processor PATH] TRACE

The package starts the binary `trace_processor_shell` (without a path it downloads the one of its release), looks once a
second whether it is up, sends it the trace over HTTP and queries it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time

_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h

_QUERY = """
SELECT name, COUNT(*) AS launches, SUM(dur) / 1000.0 AS device_time_us
FROM slice WHERE category = 'kernel' GROUP BY name ORDER BY device_time_us DESC
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace-processor")
    parser.add_argument("trace")
    arguments = parser.parse_args()
    # The binary runs in a session of its own: whoever ends this process must let it end that one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
        from perfetto.trace_processor.platform import PlatformDelegate
    except ImportError as error:
        print(f"{error} (pip install perfetto)", file=sys.stderr)
        return _UNAVAILABLE
    try:
        with contextlib.redirect_stdout(sys.stderr):
            binary = PlatformDelegate().get_shell_path(bin_path=arguments.trace_processor)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no --trace-processor PATH, and the package cannot download its own: {error}", file=sys.stderr)
        return _UNAVAILABLE
    start = time.perf_counter()
    with TraceProcessor(trace=arguments.trace, config=TraceProcessorConfig(bin_path=binary)) as processor:
        kernels = [
            {"name": row.name, "launches": row.launches, "device_time_us": row.device_time_us}
            for row in processor.query(_QUERY)
        ]
        seconds = time.perf_counter() - start
    json.dump({"kernels": kernels, "work_seconds": seconds}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
