"""What anyone would write first: python json_loop.py TRACE"""

from __future__ import annotations

import json
import sys
import time


def main(trace: str) -> None:
    start = time.perf_counter()
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel" and event.get("ph") == "X":
            found.setdefault(event["name"], []).append(event["dur"])
    kernels = [{"name": name, "launches": len(us), "device_time_us": sum(us)} for name, us in found.items()]
    kernels.sort(key=lambda kernel: kernel["device_time_us"], reverse=True)
    seconds = time.perf_counter() - start
    json.dump({"kernels": kernels, "work_seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
