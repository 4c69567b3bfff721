"""Run one command on one core and write how long it took and its peak memory: a process of its own, and a small one.

    python -I -S launch.py REPORT TIMEOUT_S CORE COMMAND...      CORE is -1 for any

A process starts with the peak memory of the one that started it: Linux keeps it over exec. Hence no import here that
is not needed. REPORT gets {"seconds", "cpu_seconds", "peak_rss_mb", "exit_code"}; the peak is that of the largest process,
the command or one that it started and waited for. After the time limit the command is asked to end, ten seconds later it is
killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_GRACE_S = 10.0
_COULD_NOT_START = 127


def main(report: str, timeout_s: str, core: str, *command: str) -> int:
    if hasattr(os, "sched_setaffinity") and int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error}\n".encode())
            os._exit(_COULD_NOT_START)
    endings = iter((signal.SIGTERM, signal.SIGKILL))
    signal.signal(signal.SIGALRM, lambda *_: _end(child, next(endings, signal.SIGKILL)))
    signal.signal(signal.SIGTERM, lambda *_: _end(child, signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: _end(child, signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, float(timeout_s), _GRACE_S)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    _end(child, signal.SIGKILL)  # what it left behind
    unit = 1 if sys.platform == "darwin" else 1024
    code = os.waitstatus_to_exitcode(status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    with open(report, "w", encoding="ascii") as file:
        file.write(
            f'{{"seconds": {seconds}, "cpu_seconds": {cpu_seconds}, "peak_rss_mb": {usage.ru_maxrss * unit / 1e6}, "exit_code": {code}}}'
        )
    return 0


def _end(leader: int, how: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(leader, how)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
