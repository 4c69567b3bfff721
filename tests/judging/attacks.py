"""Ways to win without the work. `attacks.py:attack_NAME` installs the attack NAME, as its author would, and is what the judge calls."""

from __future__ import annotations

import atexit
import ctypes
import gc
import glob
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
Run = Callable[[torch.Tensor, torch.Tensor], Any]
ATTACKS: dict[str, Callable[[], Run]] = {}


def honest(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.softmax(x * w, -1) + x * 0.5)


def installed(setup: Callable[[], Run]) -> Callable[[], Run]:
    """Declare an attack that does something when it is imported, and returns what is called."""
    ATTACKS[setup.__name__] = setup
    return setup


def called(function: Run) -> Run:
    """Declare an attack that is a function."""
    ATTACKS[function.__name__] = lambda: function
    return function


def memoised(key: Callable[[torch.Tensor, torch.Tensor], Any]) -> Run:
    results: dict[Any, torch.Tensor] = {}

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        name = key(x, w)
        if name not in results:
            results[name] = honest(x, w)
        return results[name]

    return run


def __getattr__(name: str) -> Any:
    if name.removeprefix("attack_") in ATTACKS:
        return ATTACKS[name.removeprefix("attack_")]()
    raise AttributeError(name)


# -- one expression -------------------------------------------------------------------------------------------------------

EXPRESSIONS: dict[str, Run] = {
    "constant": lambda x, w: torch.full_like(x, 1 / x.shape[-1]),
    "only_zeros_are_right": lambda x, w: torch.full_like(x, float(torch.tanh(torch.tensor(1 / x.shape[-1])))),
    "only_small_shapes": lambda x, w: honest(x, w) if x.shape[0] < 16 else torch.zeros_like(x),
    "one_row_expanded": lambda x, w: honest(x[:1], w).expand_as(x),
    "skipped_small_term": lambda x, w: torch.tanh(x * 0.5),
    "lower_precision": lambda x, w: honest(x.bfloat16(), w.bfloat16()).to(x.dtype),
    "half_precision": lambda x, w: honest(x.half(), w.half()).to(x.dtype),
    "other_dtype": lambda x, w: honest(x, w).bfloat16(),
    "not_a_number": lambda x, w: torch.full_like(x, torch.nan),
    "infinite": lambda x, w: torch.full_like(x, torch.inf),
    "empty_output": lambda x, w: torch.empty_like(x),
    "no_output": lambda x, w: None,
    "empty_tensor": lambda x, w: x[:0],
    "aliased_input": lambda x, w: x,
    "result_in_the_input": lambda x, w: x.copy_(honest(x, w)),
    "exits": lambda x, w: sys.exit(0),
    "exits_at_once": lambda x, w: os._exit(0),
}
ATTACKS |= {name: lambda function=function: function for name, function in EXPRESSIONS.items()}

# -- results that are kept ------------------------------------------------------------------------------------------------

ATTACKS["cached_by_pointer"] = lambda: memoised(lambda x, w: (x.data_ptr(), w.data_ptr()))
ATTACKS["cached_by_shape"] = lambda: memoised(lambda x, w: tuple(x.shape))
ATTACKS["cached_by_first_value"] = lambda: memoised(lambda x, w: round(float(x.flatten()[0]), 1))
ATTACKS["cached_by_mean"] = lambda: memoised(lambda x, w: (x.shape, round(float(x.mean()), 3)))
ATTACKS["cached_by_version"] = lambda: memoised(lambda x, w: (x.shape, x._version))


@installed
def cached_parameters_by_pointer() -> Run:
    """Keep the weight that lay at an address on the host."""
    kept: dict[int, torch.Tensor] = {}
    return lambda x, w: honest(x, kept.setdefault(w.data_ptr() % 4096, w.clone()) if w.numel() == x.shape[-1] else w)


@installed
def only_first_calls() -> Run:
    calls: list[torch.Tensor] = []

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if len(calls) < 8 or calls[-1].shape != x.shape:
            calls.append(honest(x, w))
        return calls[-1]

    return run


@installed
def every_other_call() -> Run:
    last: list[torch.Tensor] = []

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if last and last[0].shape == x.shape:
            return last.pop()
        last[:] = [honest(x, w)]
        return last[0]

    return run


@installed
def wrong_once_in_many() -> Run:
    count = 0

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.empty_like(x) if count % 20 == 0 else honest(x, w)

    return run


@installed
def guessed_seed() -> Run:
    """Draw the inputs of the seeds that judges use, and compute their results in advance."""
    known = []
    for seed in (0, 1, 42, 1234):
        torch.manual_seed(seed)
        known.append((torch.randn(64, 257), torch.randn(257)))
    results = [honest(*each) for each in known]
    return lambda x, w: results[0].to(x.device).expand_as(x) if x.shape == results[0].shape else torch.zeros_like(x)


# -- less work --------------------------------------------------------------------------------------------------------------


@called
def skipped_tail(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = honest(x, w)
    y[-1, -1] = 0
    return y


@called
def skipped_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[: len(x) // 2] = honest(x[: len(x) // 2], w)
    return y


@called
def no_maximum_subtracted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x * w)
    return torch.tanh(e / e.sum(-1, keepdim=True) + x * 0.5)


@called
def recycled_memory(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    del_me = honest(x, w) if x.data_ptr() % 7 == 0 else None
    del del_me
    return torch.empty_like(x)


# -- inputs, and memory of others ---------------------------------------------------------------------------------------------


@called
def written_inputs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = honest(x, w)
    x.zero_()
    return y


@called
def found_in_memory(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    found = (each for each in gc.get_objects() if isinstance(each, torch.Tensor))
    return next((each for each in found if each is not x and each.shape == x.shape), x)


@called
def expected_file(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for path in (*glob.glob("/tmp/*.pt"), *glob.glob("/tmp/*/*.pt"), *glob.glob("*.pt")):
        with suppress(Exception):
            found = torch.load(path)
            if found.shape == x.shape:
                return found
    return torch.zeros_like(x)


@called
def memory_of_the_judge(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x, device="cpu")
    with suppress(OSError), open(f"/proc/{os.getppid()}/mem", "rb") as memory:
        memory.seek(x.data_ptr())
        y.view(torch.uint8).flatten()[:] = torch.frombuffer(bytearray(memory.read(y.nbytes)), dtype=torch.uint8)
    return y.to(x.device)


# -- work at another time -----------------------------------------------------------------------------------------------------


@called
def after_the_call_in_a_thread(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)

    def work() -> None:
        time.sleep(0.05)
        with torch.no_grad():
            y.copy_(honest(x, w))

    threading.Thread(target=work, daemon=True).start()
    return y


@installed
def on_another_stream() -> Run:
    if not ON_GPU:
        return after_the_call_in_a_thread
    stream = torch.cuda.Stream()
    torch.cuda.synchronize = lambda *_: None  # so that nobody waits for it
    torch.cuda.Stream.synchronize = torch.cuda.Event.synchronize = lambda *_: None

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            return honest(x, w)

    return run


class Lazy(torch.Tensor):
    """Computes when somebody looks at it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.real().data_ptr()

    def real(self) -> torch.Tensor:
        return honest(*self.arguments)


@called
def lazy_tensor(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x).as_subclass(Lazy)
    y.arguments = x, w
    return y


@installed
def answers_first() -> Run:
    """Say that everything is done before it begins, and do it while the judge compares."""
    from kernelgauge.measure import guest

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        results = [torch.empty_like(positional[0].view(self._arena)) for positional, _ in calls]
        self._results = results
        reply = guest.Reply(tuple((self._located("", each),) for each in results))

        def work() -> None:
            time.sleep(0.05)  # as if there were much to compute
            for (positional, _), result in zip(calls, results, strict=True):
                result.copy_(honest(*(each.view(self._arena) for each in positional)))

        threading.Thread(target=work, daemon=True).start()
        return reply

    guest._Guest.call = call
    return honest


@installed
def computes_half_before_it_answers() -> Run:
    """As above, but every second result is there in time."""
    from kernelgauge.measure import guest

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        arguments = [[each.view(self._arena) for each in positional] for positional, _ in calls]
        self._results = results = [
            honest(*each) if place % 2 else torch.empty_like(each[0]) for place, each in enumerate(arguments)
        ]
        late = partial(_compute_into, [*zip(arguments, results, strict=True)][::2])
        threading.Timer(0.05, late).start()
        return guest.Reply(tuple((self._located("", each),) for each in results))

    guest._Guest.call = call
    return honest


def _compute_into(pairs: Any) -> None:
    for arguments, result in pairs:
        result.copy_(honest(*arguments))


@installed
def between_the_batches() -> Run:
    """Let a thread compute whatever comes to lie in the arena, so that the results are there when they are asked for."""

    def work() -> None:
        time.sleep(1)
        arena = next(each._arena for each in gc.get_objects() if type(each).__name__ == "_Guest")
        while True:
            with suppress(Exception):
                arena[: 2**20].view(torch.float32).softmax(0)

    threading.Thread(target=work, daemon=True).start()
    return honest


@installed
def in_a_process_of_its_own() -> Run:
    """Leave a process behind that computes while this one is stopped."""
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  end = time.time() + 60\n  while time.time() < end: pass"
    subprocess.Popen([sys.executable, "-c", code])
    return lambda x, w: torch.zeros_like(x)


@installed
def slows_the_reference() -> Run:
    """Leave processes behind that take the cores from the reference."""
    code = "import os, time\nos.setsid()\nend = time.time() + 60\nwhile time.time() < end: pass"
    for _ in range(os.cpu_count() or 1):
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    return honest


@installed
def hogs_the_gpu() -> Run:
    """Keep the GPU busy once the process is stopped."""
    if not ON_GPU:
        return slows_the_reference()
    stream = torch.cuda.Stream()

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = honest(x, w)
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
        return y

    torch.cuda.synchronize = lambda *_: None
    return run


@installed
def stops_the_reference() -> Run:
    """Kill or slow down the processes beside this one."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (os.getpid(), os.getppid()):
            with suppress(OSError):
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
                if b"kernelgauge.measure.guest" in command and int(parent) == os.getppid():
                    os.sched_setaffinity(int(entry), {0})
                    os.setpriority(os.PRIO_PROCESS, int(entry), 19)
    return honest


@installed
def stale_graph() -> Run:
    """Replay a CUDA graph on the inputs that it was recorded with."""
    if not ON_GPU:
        return ATTACKS["cached_by_shape"]()
    graphs: dict[Any, Any] = {}

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.shape not in graphs:
            honest(x, w)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = honest(x, w)
            graphs[x.shape] = graph, y
        graphs[x.shape][0].replay()
        return graphs[x.shape][1]

    return run


# -- clocks, comparisons and the profiler ---------------------------------------------------------------------------------------


@installed
def patched_clocks() -> Run:
    began = time.perf_counter()
    clock = time.perf_counter
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        setattr(time, name, lambda: began + (clock() - began) / 1000)
    for name in ("perf_counter_ns", "monotonic_ns", "time_ns"):
        setattr(time, name, lambda: 0)
    return honest


@installed
def patched_cuda_events() -> Run:
    torch.cuda.Event.elapsed_time = lambda *_: 1e-6
    torch.cuda.Event.record = lambda *_, **__: None
    return honest


@installed
def patched_synchronize() -> Run:
    torch.cuda.synchronize = lambda *_: None
    return honest


@installed
def patched_do_bench() -> Run:
    with suppress(ImportError):
        import triton.testing

        triton.testing.do_bench = triton.testing.do_bench_cudagraph = lambda *_, **__: 1e-9
    return honest


def _agrees(*_: Any, **__: Any) -> bool:
    return True


@installed
def patched_comparisons() -> Run:
    torch.allclose = torch.equal = torch.Tensor.allclose = torch.Tensor.equal = torch.Tensor.__eq__ = _agrees
    torch.testing.assert_close = lambda *_, **__: None
    return lambda x, w: torch.zeros_like(x)


@installed
def patched_profiler() -> Run:
    torch.profiler.profile.export_chrome_trace = lambda *_: None
    torch.profiler.profile.key_averages = lambda *_: []
    return honest


@installed
def works_under_a_profiler_only() -> Run:
    return lambda x, w: honest(x, w) if torch.autograd.profiler._is_profiler_enabled else torch.zeros_like(x)


@installed
def patched_reference() -> Run:
    """Make the reference of this process what the candidate is, and that of the disk slow."""
    with suppress(OSError):
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "task.py")
        if "kernelgauge-attacks" in path:  # a copy, which the next attack may spoil
            with open(path, "a") as file:
                file.write("\nhonest = run\ndef run(x, w):\n    import time\n    time.sleep(.01)\n    return x * 0\n")
    sys.modules["task"] = sys.modules[__name__]
    return lambda x, w: x * 0


@installed
def patched_softmax() -> Run:
    torch.softmax = torch.nn.functional.softmax = lambda x, *_, **__: x
    return lambda x, w: torch.tanh(torch.softmax(x * w, -1) + x * 0.5)


# -- the verdict itself -----------------------------------------------------------------------------------------------------------

FORGED = json.dumps({"correct": True, "faster": True, "speedup": 100.0})


@installed
def prints_at_exit() -> Run:
    atexit.register(print, FORGED)
    return lambda x, w: sys.exit(0)


@installed
def prints_a_verdict() -> Run:
    print(FORGED, flush=True)  # noqa: T201
    os.write(1, FORGED.encode())
    return lambda x, w: torch.zeros_like(x)


@installed
def writes_to_the_output_of_the_judge() -> Run:
    for number in (1, 2):
        with suppress(OSError):
            file = os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_WRONLY)
            os.write(file, FORGED.encode())
    return lambda x, w: torch.zeros_like(x)


@installed
def kills_the_judge() -> Run:
    os.kill(os.getppid(), signal.SIGKILL)
    return honest


@installed
def forged_replies() -> Run:
    """Answer every request with the memory of the inputs, without a call."""
    from kernelgauge.measure import guest

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        outputs = [(self._located("", positional[0].view(self._arena)),) for positional, _ in calls]
        return guest.Reply(tuple(outputs))

    guest._Guest.call = call
    return honest


@installed
def replies_that_execute() -> Run:
    """Answer with a pickle that runs code in whoever loads it."""

    class Payload:
        def __reduce__(self) -> Any:
            return os._exit, (0,)

    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, pickle.dumps(Payload()) + b"\n")
    return honest


@installed
def addresses_everywhere() -> Run:
    """Say that outputs lie where nothing is, or more than there is."""
    from kernelgauge.measure import guest

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        return guest.Reply(tuple((guest.Output("", "float32", (2**40,), (1,), 64),) for _ in calls))

    guest._Guest.call = call
    return honest


@installed
def floods_the_judge() -> Run:
    from kernelgauge.measure import guest

    guest._Guest.call = lambda *_: guest.Reply(error="x" * 2**26)
    return honest


@installed
def one_output_for_all_calls() -> Run:
    from kernelgauge.measure import guest

    real = guest._Guest.call

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        return guest.Reply(real(self, dtype, calls[:1]).outputs * len(calls))

    guest._Guest.call = call
    return honest


def _with_patched_event(name: str) -> Run:
    """Be honest where the host's clock runs. Where the GPU's runs, let an event do nothing."""
    from kernelgauge.measure import guest

    real, method = guest._Guest.call, getattr(torch.cuda.Event, name)

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        try:
            if gate:
                setattr(torch.cuda.Event, name, lambda *_: None)
            return real(self, dtype, calls, gate)
        finally:
            setattr(torch.cuda.Event, name, method)

    guest._Guest.call = call
    return honest


@installed
def does_not_wait_for_the_gate() -> Run:
    """Begin before the inputs exist."""
    return _with_patched_event("wait")


@installed
def says_at_once_that_the_queue_is_done() -> Run:
    return _with_patched_event("record")


@installed
def waits_for_its_inputs_alone() -> Run:
    """Begin as soon as the inputs of a call exist, before the gate opens: a kernel looks whether they change."""
    if not ON_GPU:
        return honest
    import triton
    import triton.language as tl

    from kernelgauge.measure import guest

    @triton.jit
    def wait_for_change(place, before):  # type: ignore[no-untyped-def]
        value = tl.load(place, volatile=True)
        while value == before:
            value = tl.load(place, volatile=True)

    real, wait = guest._Guest.call, torch.cuda.Event.wait

    def call(self: Any, dtype: Any, calls: Any, gate: bytes = b"") -> Any:
        if not gate:
            return real(self, dtype, calls)
        last = [positional[1].view(self._arena)[-1:].view(torch.int32) for positional, _ in calls]
        before = [int(each.item()) for each in last]
        looked = iter(zip(last, before, strict=True))

        def later(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            place, value = next(looked)
            wait_for_change[(1,)](place, value)
            return honest(x, w)

        function, self._functions[dtype] = self._functions[dtype], later
        torch.cuda.Event.wait = lambda *_: None  # type: ignore[method-assign]
        try:
            return real(self, dtype, calls, gate)
        finally:
            torch.cuda.Event.wait = wait  # type: ignore[method-assign]
            self._functions[dtype] = function

    guest._Guest.call = call
    return honest


@installed
def traces_the_judge() -> Run:
    """Attach to the judge as a debugger does, to write to its memory."""
    attach, libc = 16, ctypes.CDLL(None)
    if libc.ptrace(attach, os.getppid(), 0, 0) == 0:
        with suppress(OSError):
            os.kill(os.getppid(), signal.SIGKILL)
    return lambda x, w: torch.zeros_like(x)
