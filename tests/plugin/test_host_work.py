"""Work of the host that runs no op: found without a clock, with the function and the line of the
user's code.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.judge import STRUCTURE
from kernelgauge.judge.evidence import Cause
from kernelgauge.judge.structure import judge_structure
from kernelgauge.results import read_results
from tests.plugin.inner_project import Run

pytestmark = pytest.mark.timeout(300)

# Each is planted by the environment. Its line has `# planted` behind it.
WORK = """
import copy, functools, json, os, re, threading, time, warnings
import pytest, torch
from torch import nn

FAULT = "FAULT" in os.environ
CONFIG = {str(number): [number] for number in range(50)}

def copied(x):
    copy.deepcopy(CONFIG)  # planted
def pattern(x):
    re.sub("a+$", "", "a" * 2000 + "b")  # planted
def dumped(x):
    json.dumps(CONFIG)  # planted
def opened(x):
    open(os.devnull).close()  # planted
def slept(x):
    time.sleep(0)  # planted
def warned(x):
    warnings.warn("slow")  # planted
def asked(x):
    for _ in range(300): x.size(0)  # planted
def looped(x):
    for _ in range(300): x.shape  # planted
def switched(x):
    with torch.backends.mkldnn.flags(enabled=False): pass  # planted
def threaded(x):
    threading.Thread(target=len, args=("",)).start()  # planted
    while threading.active_count() > ALIVE: pass
def uncached(x):
    table()
def hooked(x):
    pass

def note(module, inputs, output):  # planted
    return None
def of_table():
    return [number * other for number in range(30) for other in range(30)]  # planted
ALIVE, table = threading.active_count(), of_table if FAULT else functools.cache(of_table)

class Net(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.linear, self.fault = nn.Linear(8, 8), fault
        if FAULT and fault is hooked:
            for _ in range(6):
                self.linear.register_forward_hook(note)

    def forward(self, x):
        if FAULT:
            self.fault(x)
        return self.linear(x)

FAULTS = [copied, pattern, dumped, opened, slept, warned, asked, looped, switched, threaded, uncached, hooked]

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_work(kernelgauge, fault):
    kernelgauge(Net(fault), torch.randn(4, 8))
"""
CAUSES = {
    "copied": "copy.deepcopy 0 -> 151 calls",
    "pattern": "re.sub 0 -> 1 call",
    "dumped": "json.dumps 0 -> 1 call",
    "opened": "_?io.open 0 -> 1 call",
    "slept": "time.sleep 0 -> 1 call",
    "warned": "_warnings.warn 0 -> 1 call",
    "asked": "Tensor.size 0 -> 300 calls",
    "looped": r"2 -> 30\d lines of your code run",
    "switched": "torch._C._set_mkldnn_enabled 0 -> 2 calls",
    "threaded": r"_thread.start_\w+ 0 -> 1 call",
    "uncached": r"2 -> 9\d\d lines of your code run",
    "hooked": "test_host.py:note 0 -> 6 calls",
}
Record = Callable[..., None]


@pytest.fixture
def record(pytester: pytest.Pytester, run: Run) -> Record:
    """Write a suite, and store baselines of its tests. What is planted later is new to them."""

    def written(tests: int, **suite: str) -> None:
        pytester.makepyfile(**suite)
        assert f"{tests} written" in run("--perf-update")

    return written


def require_causes(said: str) -> None:
    """Require that each planted fault fails, with its function and its line."""
    assert "12 failed" in said
    lines = [
        number for number, line in enumerate(WORK.strip().splitlines(), 1) if "# planted" in line
    ]
    for name, cause in CAUSES.items():
        failure = said.partition(f"test_host-test_work-{name}: REGRESSED")[2].partition("accept")[0]
        code = re.search(
            rf"cause    host: {cause}\n(?:  +and .*\n)?((?:  (?:code|    ) .*test_host.py:.*\n)+)",
            failure,
        )
        places = re.findall(r"test_host.py:(\d+)  ", code[1] if code else "")
        # `self.fault(x)` leads there, and is new, too
        assert any(int(each) in lines for each in places[:2]), (name, failure)


def require_same_causes_of_saved_runs() -> None:
    """Require that results have the callers that choose a line, and not those of all functions."""
    for each in read_results(Path("reports/latest/results.json")).workloads:
        assert each.run is not None
        assert each.baseline is not None
        (verdict,) = (it for it in each.verdicts if it.subject == STRUCTURE)
        judged = judge_structure(each.run, each.baseline)
        causes, stored = (
            [reason for reason in it.reasons if isinstance(reason, Cause)]
            for it in (judged, verdict)
        )
        assert causes == stored != []
        more = Counter(each.run.host_work) - Counter(each.baseline.host_work)
        assert each.run.host_work_callers.keys() <= more.keys()


def test_host_work_is_found_with_its_line(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(12, test_host=WORK)
    monkeypatch.setenv("FAULT", "1")
    require_causes(said := run())
    require_same_causes_of_saved_runs()
    # the function that lost its cache, whose head is the edit (Python 3.11)
    assert re.search(r"code +test_host.py:\d+  of_table\(\)  ", said) or sys.version_info < (3, 11)


HIDDEN = """
import os
import pytest, torch

NAMES = [str(number) for number in range(500)]

def apart(x):
    for name in NAMES: name == "7"  # planted
    return x.relu()
def at_the_line(x):
    return [x.relu() if name == "7" else name for name in NAMES][7]  # planted
def walked(x):
    [x.dim() for name in NAMES]  # planted
    return x.relu()

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("call", [apart, at_the_line, walked], ids=lambda each: each.__name__)
def test_work(kernelgauge, call):
    kernelgauge(lambda x: (call(x) if "FAULT" in os.environ else x) * 2, torch.randn(4, 8))
"""


def test_host_work_behind_a_new_op_has_its_line(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(3, test_hidden=HIDDEN)
    monkeypatch.setenv("FAULT", "1")
    failures = run().split(": REGRESSED")[1:]
    assert len(failures) == 3
    for failure in failures:
        assert "cause    1 new kernel: relu" in failure
        assert re.search(r"host: .*\n(?:  +and .*\n)?  code .*# planted", failure), failure


# The first process fills a cache on disk, and each process one in memory.
UNCHANGED = """
NAMES = {str(number) for number in range(40)}
@functools.cache
def of_disk():
    if os.path.exists("cache.json"):
        return json.load(open("cache.json"))
    json.dump(CONFIG, open("cache.json", "w"))
    return CONFIG

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    kernelgauge(step, torch.randn(4, 8))

def copied"""
# The last one: the others run there before Dynamo is imported.
COMPILED = """
@pytest.mark.kernelgauge(timing=False)
def test_compiled(kernelgauge):
    kernelgauge.using(compile={"backend": "eager"})(torch.sin, torch.randn(8))
"""


def test_host_work_unchanged_passes_in_another_process(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "of_disk(), sorted(NAMES), any(each == '7' for each in NAMES)"
    record(
        14,
        test_host=WORK.replace("def copied", UNCHANGED).replace(
            "if FAULT:", f"{code}\n        if FAULT:"
        )
        + COMPILED,
    )
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert "14 passed" in run("-n", "1")


SESSION = """
import functools, importlib.util, logging, os, sys
from types import SimpleNamespace
import pytest, torch

LOG = logging.getLogger("session")
EINOPS = SimpleNamespace(
    _reconstruct_from_shape=functools.lru_cache(len),
    _prepare_transformation_recipe=functools.lru_cache(len),
)
OPTIMIZER = torch.optim.SGD([torch.ones(1, requires_grad=True)])
if OTHER := "OTHER" in os.environ:
    import torch._dynamo.decorators as decorators
    torch.compile(torch.sin, backend="eager")(torch.ones(1))  # it wraps steps of optimizers
    sys.path += ["nowhere"] * 5
    LOG.addHandler(logging.NullHandler())
    # as Dynamo does it from torch 2.13 on, once anything compiles einops 0.8.1
    getattr(decorators, "_patch_einops_symint_compat", id)(EINOPS)

def called_from(depth, function):
    return called_from(depth - 1, function) if depth else function()
def step(x):
    torch.manual_seed(0)  # it keeps the stack
    importlib.util.find_spec("absent")
    LOG.error("step")
    OPTIMIZER.step()
    for text in ("a", "ab") * 10: EINOPS._reconstruct_from_shape(text)
    return x * 2

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    called_from(20 * OTHER, lambda: kernelgauge(step, torch.randn(8)))
"""


def test_host_work_that_follows_the_session_passes(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(1, test_session=SESSION)
    monkeypatch.setenv("OTHER", "1")
    assert "1 passed" in run()


# Before and after: the body of a loop over 150 tensors.
LOOP = """
import pytest, torch

VALUES = [torch.ones(4) for _ in range(150)]
def is_learned(value): return value is not None
def decay(value): return value.mul_(0.9)

def step():
    kept = []
    for value in VALUES:
        {body}

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    kernelgauge(step)
"""


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("decay(value)", "1 passed"),
        ("kept.append(value.mul_(0.9))", "1 passed"),
        ("if isinstance(value, torch.Tensor): value.mul_(0.9)", "1 passed"),
        ("assert VALUES\n        value.mul_(0.9)", "1 passed"),
        ("if is_learned(value) and is_learned(kept): decay(value)", "REGRESSED"),
        ("value.mul_(0.9)\n        for _ in range(2): pass", "REGRESSED"),
        ("kept.append(value.mul_(0.9).size())", "REGRESSED"),
    ],
)
def test_host_work_beside_each_op_is_a_loss_if_long(
    pytester: pytest.Pytester, run: Run, record: Record, body: str, verdict: str
) -> None:
    record(1, test_loop=LOOP.format(body="value.mul_(0.9)"))
    pytester.makepyfile(test_loop=LOOP.format(body=body))
    assert verdict in run()


ZOO = """
def walk(n):
    found = []
    for number in range(n):
        half = number / 2
        found.append(half)
    return found
"""
USES_ZOO = """
import pytest, torch, zoo

def forward(x):
    zoo.walk({n})
    return x * 2

@pytest.mark.kernelgauge(timing=False)
def test_zoo(kernelgauge):
    kernelgauge(forward, torch.randn(4, 8))
"""


@pytest.mark.parametrize(
    ("installed", "is_yours"), [("zoo.py", False), ("__editable__.zoo.pth", True)]
)
def test_package_in_a_target_folder_is_a_library(
    pytester: pytest.Pytester, run: Run, record: Record, installed: str, *, is_yours: bool
) -> None:
    """As `pip install --target` leaves it: with the list of its files beside it."""
    pytester.makeini("[pytest]\npythonpath = site\n")
    metadata = pytester.mkdir("site") / "zoo-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("RECORD").write_text(f"zoo-1.0.dist-info/RECORD,,\n{installed},,\n")
    metadata.with_name("zoo.py").write_text(ZOO)
    record(1, test_zoo=USES_ZOO.format(n=3))
    pytester.makepyfile(test_zoo=USES_ZOO.format(n=300))
    said = run()
    cause = "14 -> 905 lines of your code run" if is_yours else "list.append 3 -> 300 calls"
    assert f"cause    host: {cause}\n" in said
    assert is_yours or "code     test_zoo.py:4  zoo.walk(300)\n" in said


EQUAL = """
import pytest, torch
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.seen = self.last = 0

    def forward(self, x):
        h = super().forward(x)
        {body}

@pytest.mark.kernelgauge(timing=False)
def test_net(kernelgauge):
    net = Net()
    kernelgauge(lambda x: net(x), torch.randn(4096, 8))
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # torch calls 12 functions for each
        ("return h", "self.seen = self.seen + 1; self.last = 2; return h"),
        ("return abs(h) + abs(h)", "return abs(h) + h.abs()"),
        ("return h.abs()", "return abs(h)"),
        ("return h.clone().detach()", "return h.detach().clone()"),  # fewer autograd nodes
    ],
    ids=["attributes", "method", "operator", "detached"],
)
def test_edit_that_costs_nothing_passes(
    pytester: pytest.Pytester, run: Run, record: Record, before: str, after: str
) -> None:
    record(1, test_equal=EQUAL.format(body=before))
    pytester.makepyfile(test_equal=EQUAL.format(body=after))
    assert "1 passed" in run()
    often = f"for _ in range(60): self.seen = 3\n        {after}"
    pytester.makepyfile(test_equal=EQUAL.format(body=often))
    assert "REGRESSED" in run()


# A training step of more than 200 calls: most functions run once, and `isinstance` at many lines.
INSIDE = """
import copy, dataclasses, inspect, json, logging, re, typing
import pytest, torch
from torch import nn

@dataclasses.dataclass
class Options:
    width: int = 1
    names: typing.List[str] = dataclasses.field(default_factory=list)
    def __post_init__(self): self.names = list(self.names)
class Logs(logging.Handler):
    def emit(self, record): self.format(record)

LOG, OPTIONS = logging.getLogger("inside"), Options()
CONFIG = {{str(number): [number] for number in range(20)}}
LOG.handlers, LOG.propagate = [Logs()], False
POINTS = [object() for _ in range(40)]
def text_of(it): return str(it)
def is_number(it):
    return isinstance(it, int)
def is_text(it):
    return isinstance(it, str)
def check():
    for each in POINTS: isinstance(each, int)
    for each in POINTS[:8]: is_number(each)

def step(x):
    check()
    {body}
    OPTIMIZER.zero_grad()
    NET(x).sum().backward()
    OPTIMIZER.step()
NET = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
OPTIMIZER = torch.optim.SGD(NET.parameters())

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    kernelgauge(step, torch.randn(4, 8))
"""


@pytest.mark.parametrize(
    ("body", "functions"),
    [
        ("inspect.signature(is_number)", ["inspect.signature 0 -> 1 call"]),
        ("copy.deepcopy(CONFIG)", ["copy.deepcopy 0 -> 61 calls"]),
        ("json.dumps(POINTS[:20], default=text_of)", ["json.dumps 0 -> 1 call"]),
        ("for n in range(9): LOG.error(n)", ["logging.Logger.error 0 -> 9 calls"]),
        ("re.sub('[a-z]', lambda it: text_of(it[0]), 'abcdefgh' * 4)", ["re.sub 0 -> 1 call"]),
        (
            "for n in range(5): dataclasses.replace(OPTIONS, width=n)",
            ["dataclasses.replace 0 -> 5 calls"],
        ),
        ("typing.get_type_hints(Options)", ["typing.get_type_hints 0 -> 1 call"]),
        ("[is_number(each) for each in POINTS]", ["test_inside.py:is_number 8 -> 48 calls"]),
        # new calls of the same function at another line
        (
            "[inspect.isroutine(each) for each in POINTS[:9]]|[isinstance(each, str) for each in POINTS[:30]]",
            ["inspect.isroutine 0 -> 9 calls", "isinstance 67 -> 160 calls"],
        ),
        # lines of a function that is new
        (
            "[is_text(each) for each in POINTS[:20]]",
            ["isinstance 67 -> 87 calls", "test_inside.py:is_text 0 -> 20 calls"],
        ),
    ],
)
def test_host_work_of_a_new_call_belongs_to_its_line(
    pytester: pytest.Pytester, run: Run, record: Record, body: str, functions: list[str]
) -> None:
    record(1, test_inside=INSIDE.format(body="pass"))
    pytester.makepyfile(test_inside=INSIDE.format(body=body.replace("|", "\n    ")))
    said = run("-v")
    assert "REGRESSED" in said
    causes = re.findall(r"host: (.*)\n(?:  +and .*\n)?  code +test_inside.py:\d+  (.*)", said)
    assert sorted(found for found, _ in causes) == functions
    assert said.count("host: ") == len(functions)
    assert all(code in f"{body} return isinstance(it, str)" for _, code in causes)


LAYOUT = """
import pytest, torch

def step(x):
    kept = []
    {body}
    return x * 2

@pytest.mark.kernelgauge(timing=False)
def test_step(kernelgauge):
    kernelgauge(step, torch.randn(8))
"""
SHORT = "for n in range(300):|    kept.append(max(n, 1))|kept = [n for n in kept if n]"


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (
            "for n in range(300):|    kept.append(|max(|n,|1,|)|)|kept = [|n|for n in kept|if n]",
            "1 passed",
        ),
        (
            "for n in range(300):|    half = n / 2|    kept.append(max(n, 1))|kept = [n for n in kept if n]",
            "REGRESSED",
        ),
    ],
    ids=["formatted", "longer"],
)
def test_host_work_counts_statements_however_laid_out(
    pytester: pytest.Pytester, run: Run, record: Record, body: str, verdict: str
) -> None:
    record(1, test_layout=LAYOUT.format(body=SHORT.replace("|", "\n    ")))
    pytester.makepyfile(test_layout=LAYOUT.format(body=body.replace("|", "\n    ")))
    assert verdict in run()


def test_host_work_under_a_debugger_counts_calls_alone(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(12, test_host=WORK)
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        unchanged = run()
        monkeypatch.setenv("FAULT", "1")
        said = run("-k", "copied or looped")
    finally:
        sys.settrace(before)
    assert "12 passed" in unchanged
    assert "1 failed, 1 passed" in said
    assert "host: copy.deepcopy 0 -> 151 calls" in said


def test_host_work_under_a_profiler_is_not_counted(run: Run, record: Record) -> None:
    record(12, test_host=WORK)
    before, profiler = sys.getprofile(), lambda *_: None
    sys.setprofile(profiler)
    try:
        said = run("-k", "copied")
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert "1 passed" in said
    line = next(each for each in said.splitlines() if "host work was not counted" in each)
    assert (
        line
        == "warning: test_host-test_work-copied: host work was not counted: a profiler of Python runs"
    )
    (found,) = read_results(Path("reports/latest/results.json")).workloads
    assert found.run is not None
    assert not found.run.host_work


LEFT_ON = """
import os, sys
import pytest, torch
if os.environ.get("WHERE") == "import":
    sys.setprofile(lambda *_: None)

@pytest.mark.kernelgauge(timing=False)
def test_work(kernelgauge):
    if os.environ.get("WHERE") == "test":
        sys.setprofile(lambda *_: None)
    kernelgauge(torch.nn.Linear(8, 8), torch.randn(4, 8))
"""
PROFILING = """
import os, sys
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    sys.setprofile((lambda *_: None) if os.environ.get("WHERE") == "plugin" else None)
    return (yield)
"""


@pytest.mark.parametrize(
    ("where", "outcome"), [("import", "1 failed"), ("test", "1 failed"), ("plugin", "1 passed")]
)
def test_profiler_that_tested_code_leaves_on_is_undecided(
    pytester: pytest.Pytester,
    run: Run,
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    outcome: str,
) -> None:
    """One that runs around all tests is the user's: what it hides is a warning."""
    if where == "plugin":
        pytester.makeconftest(PROFILING)
    record(1, test_left=LEFT_ON)
    before = sys.getprofile()
    monkeypatch.setenv("WHERE", where)
    try:
        said = run("--perf-strict")
    finally:
        sys.setprofile(before)
    assert outcome in said
    assert "host work was not counted: a profiler of Python runs" in said
    assert ("UNDECIDED  host work no longer compared" in said) == (where != "plugin")


VARYING = """
import os, random, time
import pytest, torch
FAULT = os.environ.get("FAULT")

def draw(number):
    return str(number)

class Net(torch.nn.Linear):
    def forward(self, x):
        for number in range(random.randint(1, 60)):
            draw(number)
        for _ in range(random.randint(1, 3) if FAULT != "spread" else random.randint(300, 600)):
            os.stat(".")
        if FAULT == "beside":
            time.sleep(0)  # planted
        return super().forward(x)

@pytest.mark.kernelgauge(timing=False)
def test_work(kernelgauge):
    kernelgauge(Net(8, 8), torch.randn(4, 8))
"""


def test_host_work_that_varies_hides_no_other(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(1, test_varying=VARYING)
    said = run()
    assert "1 passed" in said
    assert "warning: test_varying-test_work: host work was compared in part: more than 5 %" in said
    monkeypatch.setenv("FAULT", "beside")
    assert "cause    host: time.sleep 0 -> 1 call" in run()
    monkeypatch.setenv("FAULT", "spread")
    assert "cause    host: posix.stat 3 -> " in run()


BAR = """
import json, sys, time

class Bar:
    def __init__(self, items):
        self.items, self.last = items, time.monotonic()

    def __iter__(self):
        for number, each in enumerate(self.items):
            yield each
            now = time.monotonic()
            if now - self.last >= 0.01:
                self.last = now
                self.show(number)

    def show(self, number):
        sys.stderr.write("\\r" + json.dumps(number))
"""
SHOWS = """
import json, os, time
from bars import Bar

def forward(x):
    for _ in Bar(range(3)):
        x = x.relu()
        time.sleep(float(os.environ["LAG"]))
        pass
    return x
"""


def test_work_that_follows_a_clock_is_no_loss(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\npythonpath = . site-packages\n")
    pytester.mkdir("site-packages").joinpath("bars.py").write_text(BAR)
    test = "import torch\nfrom model import forward\n\ndef test_x(kernelgauge):\n"
    test += "    kernelgauge.using(timing=False)(forward, torch.ones(4, 8))\n"
    pytester.makepyfile(model=SHOWS, test_x=test)
    monkeypatch.setenv("LAG", "0")
    assert "1 written" in run("--perf-update")
    monkeypatch.setenv("LAG", "0.015")
    assert "1 passed" in run()
    for line, cause in (
        ("print(time.sleep(0))", "time.sleep 3 -> 6 calls"),
        ("[json.dumps(each) for each in range(9)]", "json.dumps 0 -> "),
        ("for number in range(60): number + 1", "lines of your code run"),
    ):
        pytester.makepyfile(model=SHOWS.replace("pass", line))
        text = run()
        assert "REGRESSED" in text, text
        assert cause in text, text


def test_captured_output_below_a_failure_is_short(pytester: pytest.Pytester, run: Run) -> None:
    test = "import json, torch\n\ndef forward(x):\n    print('printed')\n    return x + 1\n\n"
    test += "def test_x(kernelgauge):\n"
    test += "    kernelgauge.using(timing=False)(forward, torch.ones(4, 8))\n"
    pytester.makepyfile(test_x=test)
    assert "1 written" in run("--perf-update")
    pytester.makepyfile(test_x=test.replace("return", "json.dumps(3)\n    return"))
    text = run()
    assert text.count("\nprinted") == 20, text
    assert " more lines: pytest -vv shows them\nprinted\n" in text, text
    assert run("-vvv").count("\nprinted") > 20


SOME_CALLS = """
import os, pytest, torch

EDITED = os.environ.get("EDITED")

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize(("every", "phase"), [(2, 0), (2, 1), (3, 0), (5, 0)])
def test_loop(kernelgauge, every, phase):
    calls = 0
    def run(x):
        nonlocal calls
        calls += 1
        total = 0
        if calls % every == phase:
            for n in range(900 if EDITED else 300):
                total += n
        return x * 2
    kernelgauge(run, torch.ones(3))
"""


def test_loop_of_some_calls_is_seen_whichever_they_are(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pytester.makepyfile(test_x=SOME_CALLS)
    assert "4 written" in run("--perf-update")
    assert "4 passed" in run()
    monkeypatch.setenv("EDITED", "1")
    said = run()
    assert "4 failed" in said
    assert len(re.findall(r"host: 60\d -> 1,80\d lines of your code run", said)) == 4


FILLS = """
import itertools, pytest, torch

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("most", [1, 2, 3, 90])
def test_queue(kernelgauge, most):
    calls = itertools.count()
    rows = torch.ones(99, 3)
    kernelgauge(lambda x: (rows[:1 + next(calls) % most] * x).sum(), torch.ones(3))
"""


def test_state_that_fills_is_said_when_it_is_recorded(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_x=FILLS)
    said = run("--perf-update")
    assert "4 written" in said
    (names,) = re.findall(r"(.+): its tensors are others in each call", said)
    assert names == "test_x-test_queue-3, test_x-test_queue-90"


SOME_PEAKS = """
import os, pytest, torch

EDITED = os.environ.get("EDITED")

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("every", [1, 3, 5])
def test_peak(kernelgauge, every):
    calls = 0
    def run(x):
        nonlocal calls
        calls += 1
        y = x * 2
        if EDITED and calls % every == 0:
            list(range(50_000))  # planted
        return y
    kernelgauge(run, torch.ones(3))
"""


def test_peak_of_some_calls_has_its_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pytester.makepyfile(test_x=SOME_PEAKS)
    assert "3 written" in run("--perf-update")
    assert "3 passed" in run()
    monkeypatch.setenv("EDITED", "1")
    said = run()
    for every in (1, 3, 5):
        own = said.partition(f"test_x-test_peak-{every}: REGRESSED")[2].partition("baseline ")[0]
        assert "peak host bytes" in own
        assert re.search(r"cause +.*Python.*\n +code +test_x.py:\d+ .*# planted", own)
