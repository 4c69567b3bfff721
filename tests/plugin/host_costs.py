"""Costs of the host that a line of code can have, and a suite with one planted in each workload.

`ASIDE` was written before each change of the rule that it was then counted by.
"""

import re
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from kernelgauge.judge import STRUCTURE
from kernelgauge.judge import evidence as e
from kernelgauge.results import Results
from kernelgauge.run import LINES

ASIDE = {
    "as_dict": "dataclasses.asdict(OPTIONS)",
    "replaced": "dataclasses.replace(OPTIONS, width=3)",
    "hints": "typing.get_type_hints(Options)",
    "spec": "importlib.util.find_spec('flash_attn')",
    "version": "importlib.metadata.version('pytest')",
    "signed": "inspect.getfullargspec(Net.forward)",
    "asyncio": "asyncio.run(asyncio.sleep(0))",
    "executor": "concurrent.futures.ThreadPoolExecutor(1).submit(len, '').result()",
    "timer": "timer = threading.Timer(9, len); timer.start(); timer.cancel(); timer.join()",
    "event": "threading.Event().wait(0.0005)",
    "barrier": "[PIPE.put(number) for number in range(50)]; [PIPE.get() for number in range(50)]",
    "database": "sqlite3.connect(':memory:').execute('select 1').fetchall()",
    "rows": "csv.writer(io.StringIO()).writerows([[1, 2, 3]] * 300)",
    "packed": "[struct.pack('<3f', 1, 2, 3) for _ in range(100)]",
    "asarray": "np.asarray(ROWS)",
    "strides": "[(x.stride(), x.is_contiguous(), x.data_ptr()) for _ in range(50)]",
    "infos": "[torch.finfo(x.dtype).eps for _ in range(100)]",
    "recursed": "fibonacci(12)",
    "glued": "text = ''\nfor _ in range(1000): text += 'x'  # planted",
    "counted": "n = 0\nwhile n < 2000: n += 1  # planted",
    "comprehended": "{str(key): value for key, value in CONFIG.items() for _ in range(30)}",
    "seeded": "torch.random.fork_rng(devices=[]).__enter__()",
    "tree": "torch.utils._pytree.tree_map(lambda each: each, CONFIG)",
    "applied": "self.apply(lambda module: None)",
    "frozen": "self.requires_grad_(True)",
    "buffers": "[(name, each.dtype) for name, each in self.named_buffers()], list(self.children())",
    "traced": "torch.fx.symbolic_trace(self.layers)",
    "finalized": "weakref.finalize(self, len, '').detach()",
    "objects": "len(gc.get_objects())",
    "sizes": "sum(map(sys.getsizeof, CONFIG.values()))",
    "decimals": "[decimal.Decimal(number) / 7 for number in range(100)]",
    "heap": "heap = []; [heapq.heappush(heap, -number) for number in range(200)]",
    "tally": "collections.Counter(TEXT.split()).most_common(3)",
    "product": "list(itertools.product(range(20), repeat=3))",
    "roots": "[math.sqrt(number) for number in range(300)]",
    "shuffled": "random.shuffle(list(range(100)))",
    "percent": "['%s=%d' % (TEXT[0], number) for number in range(500)]",
    "missing": "[getattr(self, 'missing', None) for _ in range(20)]",
    "dispatched": "[described(number) for number in range(30)]",
    "anomaly": "torch.autograd.set_detect_anomaly(False).__enter__()",
    "saved": "with torch.autograd.graph.saved_tensors_hooks(id, id): pass",
    "parsed": "urllib.parse.urlparse('https://example.org/a?b=c').query",
    "shell": "shlex.split('run --width 3 --name \"a b\"')",
    "arguments": "argparse.ArgumentParser().parse_args([])",
    "evaluated": "eval('[number * number for number in range(50)]')",
    "executed": "exec(compile('n = 3', 'made', 'exec'))",
    "tree_of_code": "ast.parse('x = [1, 2, 3]')",
    "gzipped": "gzip.compress(b'x' * 100_000)",
    "saved_state": "torch.save(dict(CONFIG), io.BytesIO())",
    "disk": "shutil.disk_usage('.')",
    "named": "socket.gethostname()",
    "smallest": "min(CONFIG, key=lambda key: len(CONFIG[key]))",
    "asked_often": "[hasattr(self, 'absent') or isinstance(self, nn.Linear) for _ in range(100)]",
    "cloned": "copy.copy(self.layers)",
    "options": "torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()",
    "deterministic": "torch.use_deterministic_algorithms(False)",
    "differed": "difflib.SequenceMatcher(None, TEXT[:100], TEXT[50:150]).ratio()",
    "wordy": "TEXT.split(), TEXT.replace('a', 'b'), TEXT.upper()",
    "digits": "str(3**5000)",
    "scanned": "'z' in ROWS, ROWS.count(None)",
    "resized": "[list(range(n)) for n in range(100)]",
    "locked": "[LOCK.acquire() and LOCK.release() for _ in range(100)]",
    "rngs": "torch.Generator().manual_seed(3)",
    "logged_state": "LOG.error('state %s', self.training)",
    "sorted_items": "[sorted(CONFIG.items()) for _ in range(5)]",
    "f_strings": "[f'{n:>8}-{n}' for n in range(300)]",
    "workers": "workers = [threading.Thread(target=fibonacci, args=(5,)) for _ in range(3)]  # planted\nfor each in workers: each.start()  # planted\nfor each in workers: each.join()  # planted",
    "rlock": "for _ in range(300):  # planted\n    with RLOCK: pass  # planted",
    "fresh_cache": "functools.lru_cache(maxsize=None)(table)(20)",
    "checked_output": "subprocess.check_output(['true'])",
    "yielded": "for _ in range(100): time.sleep(0)",
    "reopened": "[open(__file__).close() for _ in range(10)]",
    "hook_each_call": "for _ in range(10): self.layers.register_forward_pre_hook(lambda module, given: None).remove()",
    "deprecated": "warnings.warn('deprecated', DeprecationWarning)",
    "partials": "[functools.partial(len, '')() for _ in range(200)]",
    "zipped": "[dict(zip('abc', (1, 2, 3))) for _ in range(100)]",
    "queued": "waiting = collections.deque()  # planted\nfor n in range(500): waiting.append(n)  # planted",
    "deep_options": "copy.deepcopy(OPTIONS)",
    "keys": "[shape_key(x) for _ in range(30)]",
}
COSTS = {
    "hooks": "pass",
    "copied": "copy.deepcopy(CONFIG)",
    "patterns": "[re.sub('[0-9]+', 'n', f'layer{number}') for number in range(5)]",
    "pattern": "re.match('(a+)+$', 'a' * 14 + 'b')",
    "opened": "open(os.devnull).close()",
    "read": "pathlib.Path(__file__).read_text()",
    "listed": "os.listdir('.')",
    "exists": "os.path.exists('nowhere'), os.stat('.')",
    "found": "glob.glob('*.nothing')",
    "temporary": "tempfile.TemporaryFile().close()",
    "slept": "time.sleep(0.001)",
    "collected": "gc.collect()",
    "warned": "warnings.warn('slow')",
    "logged": "LOG.warning('step %d', 1)",
    "threads": "torch.set_num_threads(torch.get_num_threads())",
    "thread": "thread = threading.Thread(target=len, args=('',)); thread.start(); thread.join()",
    "process": "subprocess.run(['true'])",
    "socket": "socket.socket().close()",
    "queue": "[PIPE.put(number) or PIPE.get() for number in range(20)]",
    "lock": "for _ in range(1000):  # planted\n    with LOCK: pass  # planted",
    "sized": "for _ in range(200): x.size(0), x.dim()",
    "shapes": "for _ in range(500): x.shape[0] * x.shape[1]",
    "looped": "for number in range(1000): number * number",
    "nested": "for a in ROWS[:30]:  # planted\n    for b in ROWS[:30]: a == b  # planted",
    "lost_cache": "cached(30)",
    "lost_property": "for _ in range(30): self.slow",
    "modules": "list(self.modules())",
    "parameters": "sum(each.numel() for each in self.parameters())",
    "state": "self.state_dict()",
    "trained": "self.train(self.training)",
    "zeroed": "self.zero_grad()",
    "shown": "repr(self)",
    "dumped": "json.dumps(CONFIG)",
    "pickled": "pickle.loads(pickle.dumps(CONFIG))",
    "hashed": "hashlib.sha256(b'x' * 100_000).hexdigest()",
    "compressed": "zlib.compress(b'x' * 100_000)",
    "encoded": "base64.b64encode(b'x' * 100_000)",
    "signature": "inspect.signature(self.forward)",
    "stack": "traceback.format_stack()",
    "reloaded": "importlib.reload(wave)",
    "named_tuple": "collections.namedtuple('Pair', 'a b')",
    "made_class": "dataclasses.make_dataclass('Made', ['a'])",
    "formatted": "['{:>10} {}'.format(number, 1) for number in range(200)]",
    "by_key": "sorted(CONFIG, key=lambda key: CONFIG[key])",
    "sorted_rows": "sorted(ROWS, reverse=True)",
    "summed": "sum(range(100_000))",
    "words": "[word.upper() for word in TEXT.split()]",
    "refused": "[number for number in range(100) if not is_number('x')]",
    "contexts": "contextlib.ExitStack().enter_context(contextlib.nullcontext())",
    "grad_modes": "for _ in range(10):  # planted\n    with torch.no_grad(): pass  # planted",
    "autocast": "with torch.autocast('cpu', torch.bfloat16): pass",
    "flags": "with torch.backends.mkldnn.flags(enabled=False): pass",
    "dtype": "torch.set_default_dtype(torch.float32)",
    "function_mode": "with Passing(): x.shape, x.relu_",
    "item": "NUMBER.item()",
    "listing": "NUMBERS.tolist()",
    "numpy": "NUMBERS.numpy()",
    "interpreted": "eval('3 + 3')",
    "imported": "__import__('wave')",
    "in_place": "ROWS.sort()",
    "array": "np.array([1, 2, 3])",
    "noise": "np.random.rand(10)",
    "dates": "datetime.datetime.now().isoformat()",
    "identified": "uuid.uuid4()",
    "drawn": "[random.random() for _ in range(300)]",
    "environment": "[os.environ.get('NO_SUCH_NAME') for _ in range(30)]",
    "printed": "print('step', file=io.StringIO())",
    "averaged": "statistics.mean(range(100))",
    "wrapped": "textwrap.wrap(TEXT)",
    "fractions": "sum(fractions.Fraction(1, n) for n in range(1, 9))",
    "steps_summed": "sum(number for number in range(500))",
    "of_gradients": "[x.register_hook(lambda gradient: None) for _ in range(9)]",
    "growing": "self.kept.append(1); sum(self.kept)",
    "attribute": "[LOOKUP.field for _ in range(50)]",
    "width": "sum([LOOKUP.width for _ in range(40)])",
    "generator": "list(numbered(200))",
    "crossed": "[a * b for a in range(30) for b in range(30)]",
    "suppressed": "for _ in range(50):  # planted\n    with contextlib.suppress(ValueError): pass  # planted",
    "replaced_often": "[dataclasses.replace(OPTIONS, width=n) for n in range(50)]",
    "informed": "for n in range(100): LOG.info('n %d', n)",
    "round_trip": "json.loads(json.dumps(CONFIG))",
    "compiled_patterns": "[re.compile('a%d' % n) for n in range(20)]",
    "shallow": "[copy.copy(OPTIONS) for _ in range(20)]",
    "home": "[os.environ['HOME'] for _ in range(100)]",
    "kinds": "for m in list(self.modules()) * 10:  # planted\n    isinstance(m, nn.Conv2d) or isinstance(m, nn.LSTM) or isinstance(m, nn.GRU)  # planted",
    "unpacked": "for _ in range(100): b, t, c = x.shape",
    "floats": "[float(n) for n in NUMBERS[:20]]",
    "rebuilt": "for _ in range(10):  # planted\n    {key: list(value) for key, value in CONFIG.items()}  # planted",
}
# What costs a microsecond or two, or another form of the same: never a loss.
HARMLESS = {
    "length": "len(x.shape)",
    "checked": "isinstance(x, torch.Tensor) and hasattr(self, 'cost')",
    "root": "math.sqrt(x.size(-1))",
    "clock": "time.perf_counter()",
    "variable": "os.environ.get('NO_SUCH_NAME')",
    "joined": "os.path.join('a', 'b')",
    "debugged": "LOG.debug('step %d', 1)",
    "null": "with contextlib.nullcontext(): pass",
    "partial": "functools.partial(len, '')()",
    "chained": "list(itertools.chain([1], [2]))",
    "added": "operator.add(1, 2)",
    "cast": "typing.cast('int', 3)",
    "platform": "sys.getrefcount(x), sys.platform",
    "deque": "collections.deque([1, 2]).append(3)",
    "ordered": "collections.OrderedDict(a=1)",
    "merged": "{**CONFIG, 'more': 1}, dict(a=1)",
    "text": "'a,b'.split(','), f'{x.dim()}'.upper()",
    "named": "type(self).__name__.lower()",
    "asserted": "assert x.is_contiguous()",
    "ready": "torch.is_grad_enabled(), torch.compiler.is_compiling(), torch.jit.is_scripting()",
    "default": "torch.get_default_dtype(), torch.is_autocast_enabled()",
    "warned_not": "if x is None: warnings.warn('none')",
    "randomly": "random.random() < 0.5",
    "bisected": "bisect.bisect([1, 2, 3], 2)",
    "heap": "heapq.heappush([], 3)",
    "mean": "sum([1, 2, 3]) / 3",
    "sorted": "sorted([3, 1, 2])",
    "any": "any(each is None for each in (x, self))",
    "held": "LOCK.acquire(); LOCK.release()",
    "thread": "threading.current_thread(), threading.get_ident()",
    "weakly": "weakref.ref(self)()",
    "numbered": "int('3') + abs(-3) + round(2.5)",
    "enumerated": "list(enumerate(zip([1, 2], [3, 4])))",
    "helper": "is_number('3')",
    "collecting": "gc.isenabled()",
    "copied": "CONFIG.copy(), copy.copy(ROWS[:3])",
    "fields": "OPTIONS.width, dataclasses.is_dataclass(OPTIONS)",
    "matched": "re.match('a', 'ab')",
    "parts": "struct.calcsize('3f')",
    "abstract": "isinstance(x, collections.abc.Mapping)",
    "reduced": "functools.reduce(max, [1, 2])",
    "sent": "(each for each in (1, 2)).send(None)",
    "viewed": "Net.__dict__.get('forward')",
    "context": "VARIABLE.get()",
    "method": "types.MethodType(len, '')()",
    "warnings": "warnings.filters.copy()",
    "decoded": "codecs.lookup('utf-8').name",
    "named_color": "enum.Enum('Color', 'RED') if x is None else None",
    "dtype": "x.dtype.is_floating_point, x.device.type, x.element_size()",
}
FILE = "test_costs.py"
HOSTS = ("forward", "encoder", "train", "step")
PRELUDE = """\
import argparse, ast, asyncio, base64, bisect, operator, collections, concurrent.futures, contextlib, copy, csv, dataclasses, datetime
import decimal, difflib, fractions, functools, gc, glob, gzip, hashlib, heapq, importlib.metadata, importlib.util, inspect
import codecs, contextvars, enum, io, itertools, types, json, logging, math, os, pathlib, pickle, queue, random, re, shlex, shutil, socket, sqlite3
import statistics, struct, subprocess, sys, tempfile, textwrap, threading, time, traceback, typing, urllib.parse, uuid
import warnings, wave, weakref, zlib
import numpy as np, pytest, torch
from torch import nn

PLANTED = "PLANTED" in os.environ
CONFIG = {f"layer{number}": [number] * 3 for number in range(40)}
ROWS, TEXT, NUMBERS = list(range(3000)), "one two three " * 100, torch.arange(300)
NUMBER, VARIABLE = torch.tensor(3), contextvars.ContextVar("variable", default=3)
LOCK, PIPE, LOG = threading.Lock(), queue.Queue(), logging.getLogger("planted")

@dataclasses.dataclass
class Options:
    width: int = 1
    names: typing.List[str] = dataclasses.field(default_factory=lambda: ["a"] * 20)
OPTIONS = Options()

class Passing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)  # planted
def table(n): return [a * b for a in range(n) for b in range(n)]  # planted
def is_number(text):
    try: return int(text)
    except ValueError: return None
def note(module, inputs, output): return None  # planted
@functools.singledispatch
def described(it): return str(it)
cached = table if PLANTED else functools.lru_cache(table)

class Lookup:
    def __getattr__(self, name): return CONFIG.get(name)  # planted
    @property
    def width(self): return len(CONFIG) * 2  # planted
LOOKUP, RLOCK = Lookup(), threading.RLock()
def numbered(n):
    for number in range(n): yield number  # planted
def shape_key(x): return tuple(x.shape), x.dtype

class Net(nn.Module):
    def __init__(self, cost, host):
        super().__init__()
        self.layers = (
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            if host == "encoder" else nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        )
        self.cost, self.kept = cost, []
        if PLANTED and cost.__name__ == "cost_hooks":
            for each in self.modules(): each.register_forward_hook(note)
    @property
    def slow(self): return sorted(CONFIG)[0]  # planted
    def forward(self, x):
        x = self.layers(x)
        if PLANTED:
            self.cost(self, x)
        return x * 2

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize(("name", "host"), CASES)
def test_cost(kernelgauge, name, host):
    torch.manual_seed(0)
    net, x = Net(globals()[f"cost_{name}"], host), torch.randn(2, 4, 8)
    if host == "step":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        def step(x):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        kernelgauge.using(pass_="call")(step, x)
    elif host == "train":
        kernelgauge.using(pass_="train")(net, x)
    else:
        kernelgauge(net.eval(), x)
"""


class Found(NamedTuple):
    """What a verdict says of a planted cost, and of the first cause that is the host's."""

    is_red: bool
    function: str
    is_named: bool  # whether the planted code has the function's name
    is_located: bool  # whether the cause has the planted line


def suite(costs: dict[str, str]) -> str:
    """Return a module with a workload for each cost. ``# planted`` stands behind what costs."""
    cases = [(name, host) for name, host in zip(costs, cycle(HOSTS), strict=False)]
    functions = []
    for name, code in costs.items():
        lines = code if "# planted" in code else f"{code}  # planted"
        body = "\n".join(f"    {line}" for line in lines.splitlines())
        functions.append(f"def cost_{name}(self, x):\n{body}\n")
    return f"CASES = {cases}\n{''.join(functions)}{PRELUDE}"


def recorded_costs(costs: dict[str, str]) -> str:
    """Return the expression for pytest's ``-k`` of one cost for each host."""
    return " or ".join(f"{name}-{host}" for name, host in zip(costs, HOSTS, strict=False))


def share_baselines(folder: Path, costs: dict[str, str]) -> None:
    """Give each cost the baseline that was recorded for the first one of its host."""
    first = dict(zip(HOSTS, costs, strict=False))
    for name, host in zip(costs, cycle(HOSTS), strict=False):
        recorded = f"test_cost-{first[host]}-{host}"
        (file,) = folder.glob(f"baselines/*/*{recorded}.json")
        text = file.read_text("utf-8").replace(recorded, f"test_cost-{name}-{host}")
        file.with_name(file.name.replace(recorded, f"test_cost-{name}-{host}")).write_text(
            text, "utf-8"
        )


def found(results: Results, costs: dict[str, str]) -> dict[str, Found]:
    """Return what the verdicts on structure say of each planted cost."""
    said, lines = {}, suite(costs).splitlines()
    for result in results.workloads:
        name = result.id.rpartition("test_cost-")[2].rpartition("-")[0]
        verdict = next((each for each in result.verdicts if each.subject == STRUCTURE), None)
        reasons = verdict.reasons if verdict else ()
        causes = [each for each in reasons if isinstance(each, e.Cause)]
        of_host = [each for each in causes if isinstance(each.change, e.HostCalls)]
        cause = next(iter(of_host or causes), e.Cause())
        # `self.cost(self, x)` leads to it, and is new, too
        is_located = any(
            line.file == FILE and "# planted" in lines[line.line - 1]
            for place in cause.places
            for line in (place.line, place.line.deepest)
        )
        function = cause.change.function if isinstance(cause.change, e.HostCalls) else ""
        parts = {part.strip("_") for part in re.findall(r"\w{3,}", function.lower())} - {"torch"}
        # `LOOKUP` is a `Lookup`
        is_named = function == LINES or any(part in costs[name].lower() for part in parts)
        said[name] = Found(
            # What cannot be measured fails as well. An op is named by its line.
            verdict is None or verdict.status.fails,
            function,
            is_named or (not function and is_located),
            is_located,
        )
    return said
