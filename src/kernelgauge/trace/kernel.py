"""What ran in a window, launch by launch: the identity of each kernel, what it does, and the op
that launched it.

Without a GPU, the ops that compute take the place of kernels. `ops.json` says what ATen's ops do by
their names.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from math import prod
from operator import mul
from pkgutil import get_data
from statistics import median
from typing import Annotated, Any

import msgspec

from .model import FRAME, MODULE_PREFIX, DeviceRecord, Op, Window, is_list, nested, number_streams
from .names import KernelName, Kind, decode, kind_of_words

# Inductor numbers its compiled graphs for the life of the process: `graph_0_`, `graph_1_`. No part
# of the identity.
_NUMBER = re.compile(r"_\d+$")  # of a kernel in its program
_GRAPH_NUMBER = re.compile(r"^graph_\d+_")
IN_LISTS = "; in lists "
CONTIGUOUS = "contiguous"


class KernelIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes two launches the same kernel: its name, its launch configuration and its source.

    The name alone does not: Inductor's autotuner runs one fused kernel in 38 or 55 us on an H200,
    by its choice of block size. The source hash is that of Inductor's generated file, where the
    trace has it.
    """

    name: str
    kind: str
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    source_hash: str | None = None

    @property
    def decoded(self) -> KernelName:
        """What the name says: library, kind, dtype, layout, fused ops."""
        return decode(self.name)

    @property
    def shown(self) -> str:
        """Return the name as messages show it: printable and short. Data keep it whole."""
        return self.decoded.short

    @property
    def is_inductors(self) -> bool:
        """Tell whether Inductor generated it for Triton, and may tune it."""
        return self.decoded.backend == "inductor-triton"

    @property
    def choice(self) -> str:
        """Return the configuration that an autotuner chose, as `KernelChoice.config` has it; empty
        if it is not known.
        """
        if self.kernel_kwargs is None or self.num_warps is None or self.num_stages is None:
            return ""
        parts = [part.strip() for part in self.kernel_kwargs.split(",") if part.strip()]
        parts += [f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"]
        return ",".join(sorted(parts))

    @property
    def unnumbered(self) -> str:
        """Return the name without the compiler's number of the kernel in its program: one more
        kernel moves those after it.
        """
        return (
            _NUMBER.sub("", self.name)
            if self.decoded.backend.startswith(("inductor", "xla"))
            else self.name
        )

    @property
    def without_source(self) -> KernelIdentity:
        """Return name and launch configuration: another version of Inductor gives a kernel another
        source and number.
        """
        return msgspec.structs.replace(self, name=self.unnumbered, source_hash=None)


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the compiled code of a kernel takes. None: not known. It is no part of what makes two
    launches the same kernel.

    Attributes: registers: of a thread; `spilled_words`, of 32 bits, are those that a thread has in
        local memory beside them. shared_bytes: of a block, static and dynamic together: the
        profiler records the sum. code: the beginning of a digest of the machine code. options: of
        the compilation, ``num_warps=4,BLOCK=1024,x_ptr=divisible by 16``; empty: not known.
        is_tuned: whether an autotuner chose the options. layout: ``contiguous``, or the strides of
        those tensors of its op that do not lie so; empty: not known. Those in lists of tensors
        stand behind `IN_LISTS`.
    """

    registers: int | None = None
    shared_bytes: int | None = None
    spilled_words: int | None = None
    tensor_core_instructions: int | None = None
    memory_instructions: int | None = None
    conversions: int | None = None
    code: str | None = None
    options: str = ""
    is_tuned: bool = False
    layout: str = ""

    def filled(self, other: Resources) -> Resources:
        """Return these, with those of `other` where they are not known."""
        unknown = [name for name in self.__struct_fields__ if getattr(self, name) in (None, "")]
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in unknown})


class SourceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of code."""

    file: str  # relative to the working directory, or to the packages
    line: int = 0  # 0: not known, or of a baseline: code that it has may stand elsewhere now
    code: str = ""
    # of a library that it called, which asked for the launch. None: this line did
    inner: SourceLine | None = None

    @property
    def at(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def deepest(self) -> SourceLine:
        return self.inner or self

    @property
    def codes(self) -> tuple[str, str]:
        return self.code, self.deepest.code

    def leading_to(self, line: SourceLine) -> SourceLine:
        """Return this line with another below it; or that one, if both are of one statement."""
        is_one = bool(self.code) and (self.file, self.code) == (line.file, line.code)
        return (
            line
            if is_one or self.at == line.at
            else msgspec.structs.replace(self, inner=line.deepest)
        )

    def __str__(self) -> str:
        return f"{self.at}  {self.code}" if self.code else self.at


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a launch comes from.

    It is no part of what the launch is: a line that moved is no change.
    """

    # path in the model (``layers.*.mlp`` where compiled layers share the code), or the model's
    # class
    module: str
    lines: tuple[SourceLine, ...]  # that asked for it; those of each op that a compiler fused
    is_backward: bool = False  # autograd launched it for these lines
    is_dynamic: bool | msgspec.UnsetType = msgspec.UNSET  # Inductor generated it for dynamic shapes
    calls: int = 0  # of a function on the host, which the line makes itself
    # of each line, the user's lines that lead to it, the outermost first; then itself, and the blocks
    # around these. Empty: there are none
    callers: tuple[tuple[SourceLine, ...], ...] = ()

    def below(self, known: AbstractSet[str], repeated: AbstractSet[str] = frozenset()) -> Origin:
        """Return it with the outermost line of the user's that is not `known` in place of each line,
        else the block: what an edited line calls is its work, and what an edited loop repeats.

        If all are known, the outermost one that is `repeated` more often takes the place.
        """

        def outermost(line: SourceLine, above: Sequence[SourceLine]) -> SourceLine:
            new = (each for each in above if each.code not in known)
            more = (each for each in above if each.code in repeated)
            found = next(chain(new, more), None)
            return found.leading_to(line) if found else line

        if not self.callers:
            return self
        pairs = zip(self.lines, self.callers, strict=True)
        lines = tuple(outermost(*each) for each in pairs)
        return msgspec.structs.replace(self, lines=lines, callers=())

    @property
    def codes(self) -> list[str]:
        return [line.deepest.code for line in self.lines]


class KernelRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launch with all that runs are compared by: of a call, of a baseline, or of the steps of a
    trace.

    Attributes:
        device_time_us: mean over the replicates; of a trace, the median of `durations_us`.
        op: the op that launched it; empty if not known, or where the op of a CPU stands for a
            kernel.
        inputs: dtype and shape of each tensor that the op was given: ``bf16[8192,768]``. Empty: not
            known.
        stream: 0 for the default stream, or else that of the first launch of the call; 1 for the
            next one, and so on.
        resources: None: not known.
        arguments: those of the op that are no tensors: ``dim=-1``, see `Op.arguments`; ``dim=`` for
            one that differs between calls or processes. None: not known.
        origin: where it comes from; None: not known. Files have the origins beside the launches.
        call: the number of the call of a sequence that launched it.
        place: among the launches of its run.
        durations_us: in each step of a trace.
        input_shapes: as a trace has them, beside `input_types`.
    """

    identity: KernelIdentity
    device_time_us: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    op: str = ""
    inputs: tuple[str, ...] = ()
    stream: int = 0
    resources: Resources | None = None
    arguments: tuple[str, ...] | None = None
    origin: Origin | None = None
    call: int | None = None
    place: int = -1
    durations_us: tuple[float, ...] = ()
    input_shapes: tuple[Any, ...] = ()
    input_types: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return kind_of_launch(self.identity, self.op)

    @property
    def module(self) -> str:
        return self.origin.module if self.origin is not None else ""

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        return self.origin.lines if self.origin is not None else ()

    @property
    def context(self) -> Hashable:
        """What tells the launch from others of its name."""
        return (
            (self.identity.without_source, self.op, self.inputs),
            tuple(self.origin.codes) if self.origin else (),
            self.module,
            bool(self.origin and self.origin.is_backward),
        )


def identity_of(record: DeviceRecord, op: Op | None) -> KernelIdentity:
    """Return the identity of what ran: the autotuner's choice stands on the op that launched it,
    the rest on the record.
    """
    # The op's Triton keys belong to the kernel it is named after: a library call under the same id
    # has none.
    is_named = op is not None and op.name == record.name
    chosen = (
        (op.kernel_kwargs, op.num_warps, op.num_stages, op.kernel_hash)
        if op is not None and is_named
        else ()
    )
    return _identity(record.name, record.grid, record.block, *chosen)


@lru_cache(maxsize=4096)  # a trace launches the same few kernels a hundred thousand times
def _identity(name: str, *fields: Any) -> KernelIdentity:
    return KernelIdentity(name, decode(name).kind.value, *fields)


def identity_of_op(op: Op) -> KernelIdentity:
    """Return the identity of an op that computes: without a GPU, it is the kernel."""
    name = _GRAPH_NUMBER.sub("", op.name)
    return KernelIdentity(name, _kind_of(name).value)


def with_current_kind(identity: KernelIdentity) -> KernelIdentity:
    """Return an identity that an earlier version stored, with the kind of a name that no rule knew
    then.
    """
    kind = _kind_of(identity.name).value if identity.kind == Kind.OTHER.value else identity.kind
    return msgspec.structs.replace(identity, kind=kind)


@lru_cache(maxsize=4096)
def kind_of_launch(identity: KernelIdentity, op: str | None) -> str:
    """Return what a kernel does.

    Where no rule knows its name, the op that launched it says so, else the name's words.
    """
    if identity.kind != Kind.OTHER.value:
        return identity.kind
    texts = (op or "", decode(identity.name).short)
    kinds = [
        kind for text in texts for kind in (_kind_of(text), kind_of_words(text.rpartition("::")[2]))
    ]
    return next((kind for kind in kinds if kind is not Kind.OTHER), Kind.OTHER).value


class _Tables(msgspec.Struct):
    """Names of ops, with spaces between them (aten/src/ATen/native/native_functions.yaml)."""

    dtypes: dict[str, str]  # C++ types as the compiler of torch spells them, and their short names
    kinds: dict[Kind, str]  # a name stands for its in-place variant too
    # These return a view or rewrite sizes and strides (aten/src/ATen/native/TensorShape.cpp, each
    # is declared as a view or alias). A reshape of a tensor that is not contiguous copies: it is
    # composite too.
    metadata: str
    allocation: str  # these only obtain memory
    composite: str  # these only choose which other op does the work (CompositeImplicitAutograd)


_TABLES = msgspec.json.decode(get_data(__package__, "ops.json") or b"", type=_Tables)
_KINDS = {name: kind for kind, names in _TABLES.kinds.items() for name in names.split()}
METADATA_OPS, _ALLOCATION_OPS, _COMPOSITE_OPS = (
    frozenset(f"aten::{name}" for name in names.split())
    for names in (_TABLES.metadata, _TABLES.allocation, _TABLES.composite)
)


def _kind_of(name: str) -> Kind:
    """Return what an op of ATen (``aten::add_``: by the tables, else by the words of its name) or a
    kernel does.
    """
    if not name.startswith("aten::"):
        return decode(name).kind
    op = name.removeprefix("aten::")
    kind = _KINDS.get(op) or _KINDS.get(op.removesuffix("_"))
    return kind or (Kind.REDUCTION if op.endswith("softmax") else kind_of_words(op))


def input_texts(shapes: Iterable[Any], types: Iterable[str]) -> tuple[str, ...]:
    """Return dtype and shape of each tensor that an op was given, as `KernelRecord.inputs` has
    them.
    """
    # The profiler writes "" for an optional tensor that is None, and a Python number as a double
    # without dimensions.
    no_tensors = ("", "Scalar", "ScalarList")
    pairs = zip(shapes, types, strict=False)
    tensors = [
        (shape, kind)
        for shape, kind in pairs
        if kind not in no_tensors and not is_list(kind) and (shape or kind != "double")
    ]
    return tuple(
        f"{_TABLES.dtypes.get(kind, kind)}[{','.join(map(str, shape))}]" for shape, kind in tensors
    )


def common_arguments(several: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the arguments of one launch in several calls or processes, without a value for one
    that differs. Those that are not known do not count.
    """
    known = [each for each in map(arguments_by_name, several) if each is not None]
    names = dict.fromkeys(chain.from_iterable(known))
    values = {name: {each.get(name, "") for each in known} for name in names}
    return (
        tuple(f"{name}={one.pop() if len(one) == 1 else ''}" for name, one in values.items())
        if known
        else None
    )


def arguments_by_name(arguments: tuple[str, ...] | None) -> dict[str, str] | None:
    """Return the values of `KernelRecord.arguments`; None: not known."""
    if arguments is None:
        return None
    return {name: value for name, _, value in (each.partition("=") for each in arguments)}


def _layout(shapes: tuple[Any, ...], strides: tuple[Any, ...]) -> str:
    """Return `Resources.layout`."""
    pairs = [*zip(shapes, strides, strict=False)]
    lists = [each for each in pairs if each[0] and not isinstance(each[0][0], int)]
    in_lists = _strided(chain(*(zip(*each, strict=False) for each in lists)))
    texts = [", ".join(_strided(pairs)), ", ".join(dict.fromkeys(in_lists))]
    return IN_LISTS.join(each or CONTIGUOUS for each in texts[: 1 + bool(lists)]) if strides else ""


def _strided(pairs: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Yield shape and strides of tensors that are not contiguous.

    Steps along one element, or none, say nothing.
    """
    for shape, steps in pairs:
        if (
            not shape
            or len(shape) != len(steps)
            or not all(isinstance(each, int) for each in (*shape, *steps))
        ):
            continue
        dense = [*accumulate(reversed(shape[1:]), mul, initial=1)][::-1]
        if 0 not in shape and any(
            a > 1 and b != c for a, b, c in zip(shape, steps, dense, strict=True)
        ):
            yield f"[{','.join(map(str, shape))}] by strides {','.join(map(str, steps))}"


# Rows that torch.compile adds to the host lane (torch/_dynamo, torch/_functorch; seen with torch
# 2.11 and 2.13).
COMPILE_PREFIXES = (
    "TorchDynamo Cache Lookup", "Torch-Compiled Region", "Pregraph bytecode", "AOTDispatcher Runtime Wrapper",
    "## Call CompiledFxGraph", "CompiledFunction", "CompiledAutograd",
)  # fmt: skip
# they wrap the ops of the backward pass
_AUTOGRAD_PREFIXES = ("autograd::engine", "torch::autograd")
# "MmBackward0" and "LigerGELUMulFunction" wrap the ops they call; a generated C++ kernel does not.
# The last one is of flex_attention: torch/_inductor/codegen/cpp_flex_attention_template.py
_GENERATED = re.compile(r".*(?:cpp|triton)_|graph_\d+_kernel$")


def is_dispatched(name: str) -> bool:
    """Tell whether a row of the host lane is an op of the dispatcher: `namespace::name`."""
    return "::" in name and not name.startswith(_AUTOGRAD_PREFIXES)


def dispatcher_ops(window: Window) -> list[Op]:
    """Return the ops that went through the dispatcher, in order, nested ones too."""
    return [op for op in window.ops if is_dispatched(op.name)]


def computing_ops(window: Window) -> list[Op]:
    """Return the outermost ops that compute, in order: what takes the place of kernels on a machine
    without a GPU.
    """
    found: list[Op] = []
    # ids of ops in which nothing counts: they are counted already, or compute nothing
    hiding: set[int] = set()
    for op, around in nested(window.ops):
        is_hidden = bool(around) and id(around[-1]) in hiding
        only_wraps = op.name in _COMPOSITE_OPS or op.name.startswith(
            (*COMPILE_PREFIXES, *_AUTOGRAD_PREFIXES)
        )
        if is_hidden or (not only_wraps and ("::" in op.name or _GENERATED.match(op.name))):
            hiding.add(id(op))
            if not (is_hidden or op.name in METADATA_OPS or op.name in _ALLOCATION_OPS):
                found.append(op)
    return found


def kernels_of_ops(window: Window, ran: Sequence[Execution]) -> list[int | None]:
    """Return for each op of a window the place of the kernel that it belongs to: its own, or that
    of an op around it.

    An op around several kernels belongs to the first of them. `ran`: the window's kernels
    (`executions`).
    """
    own: dict[int, int] = {}
    for place, each in enumerate(ran):
        own.setdefault(id(each.op), place)
    around_of = [
        (op, [each for each in around if is_dispatched(each.name)])
        for op, around in nested(window.ops)
    ]
    inside: dict[int, int] = {}  # the first kernel within an op
    for op, around in around_of:
        if id(op) in own:
            for parent in around:
                inside.setdefault(id(parent), own[id(op)])
    found = []
    for op, around in around_of:
        nearest = [id(each) for each in (op, *reversed(around))]
        places = (known[each] for known in (own, inside) for each in nearest if each in known)
        found.append(next(places, None))
    return found


def ops_within_ops(window: Window) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    """Yield name and shapes of each op, and whether an op of the dispatcher is around it."""
    for op, around in nested(window.ops):
        yield op.name, op.input_shapes, any(is_dispatched(each.name) for each in around)


def metadata_ops_that_launched(window: Window) -> list[str]:
    """Return the names of metadata ops that launched something: a `reshape` that had to copy, for
    example.
    """
    starts = sorted(launch.call.start_us for launch in window.launches)
    return [
        op.name
        for op in window.ops
        if op.name in METADATA_OPS
        and bisect_left(starts, op.start_us) < bisect_right(starts, op.end_us)
    ]


@dataclass(frozen=True)
class Execution:
    """One kernel of a window: what ran, and when. `op`: what launched it; on a CPU, what it is."""

    identity: KernelIdentity
    duration_us: float
    start_us: float
    op: Op | None
    stream: int = 0
    resources: Resources | None = None


def executions(window: Window, *, on_cpu: bool) -> list[Execution]:
    """Return the kernels of a window, in launch order; those whose launch is not in the trace come
    last.
    """
    if on_cpu:
        return [
            Execution(
                identity_of_op(op),
                op.duration_us,
                op.start_us,
                op,
                resources=_resources(None, None, op.input_shapes, op.input_strides),
            )
            for op in computing_ops(window)
        ]
    ran: list[tuple[DeviceRecord, Op | None]] = [
        (launch.record, launch.op) for launch in window.launches
    ]
    ran += [(record, None) for record in window.orphans if record.category == "kernel"]
    found = []
    for row, op in ran:
        inputs = (op.input_shapes, op.input_strides) if op else ((), ())
        resources = _resources(row.registers, row.shared_bytes, *inputs)
        found.append(
            Execution(
                identity_of(row, op), row.duration_us, row.start_us, op, row.stream, resources
            )
        )
    return found


@lru_cache(maxsize=4096)
def _resources(
    registers: int | None, shared_bytes: int | None, *inputs: tuple[Any, ...]
) -> Resources | None:
    layout = _layout(*inputs)
    is_known = registers is not None and shared_bytes is not None
    return Resources(registers, shared_bytes, layout=layout) if is_known or layout else None


def launch_sequence(
    ran: Sequence[Sequence[Execution]], frames: Sequence[Op]
) -> tuple[KernelRecord, ...]:
    """Return the launches of steps that launched the same kernels.

    `frames`: see `Trace.modules`.
    """
    places = places_of(frames, [each.op for each in ran[-1] if each.op])
    streams = number_streams(each.stream for each in ran[-1])
    found = []
    for place, launches in enumerate(zip(*ran, strict=True)):
        identities, ops = [each.identity for each in launches], [each.op for each in launches]
        identity, last = identities[-1], ops[-1]
        # What the steps have in common: where its grids vary, none is known.
        vary = [
            name
            for name in identity.__struct_fields__
            if len({getattr(one, name) for one in identities}) > 1
        ]
        identity = msgspec.structs.replace(identity, **dict.fromkeys(vary)) if vary else identity
        # A persistent kernel has one grid for every shape.
        inputs = {(op.input_shapes, op.input_types) if op else ((), ()) for op in ops}
        shapes, types = inputs.pop() if len(inputs) == 1 else ((), ())
        durations_us = tuple(max(0.0, each.duration_us) for each in launches)
        resources = {each.resources for each in launches}
        row = KernelRecord(
            identity,
            median(durations_us),
            op=last.name if last else "",
            inputs=input_texts(shapes, types),
            stream=streams[launches[-1].stream],
            resources=resources.pop() if len(resources) == 1 else None,
            origin=origin_at(*places.get(id(last), ("", ""))),
            place=place,
            durations_us=durations_us,
            input_shapes=shapes,
            input_types=types,
        )
        found.append(row)
    return tuple(found)


def origin_at(module: str, frame: str) -> Origin | None:
    """Return the origin of what ran in a module and a Python function, as a trace names both.

    None: neither is known.
    """
    match = FRAME.fullmatch(frame)
    lines = (SourceLine(match["file"], int(match["line"]), match["function"]),) if match else ()
    return Origin(module, lines) if module or lines else None


def places_of(frames: Sequence[Op], ops: Iterable[Op]) -> dict[int, tuple[str, str]]:
    """Return by id of an op the modules that were open on its thread, and the deepest Python
    function.
    """
    found: dict[int, tuple[str, str]] = {}
    rows = (
        sorted((*frames, *ops), key=lambda row: (row.start_us, -row.duration_us)) if frames else ()
    )
    are_frames = set(map(id, frames))
    for row, around in nested(rows):
        if id(row) not in are_frames:
            names = [each.name for each in around if id(each) in are_frames]
            modules = [
                name.removeprefix(MODULE_PREFIX) for name in names if name.startswith(MODULE_PREFIX)
            ]
            functions = [name for name in names if not name.startswith(MODULE_PREFIX)]
            found[id(row)] = ".".join(modules), functions[-1] if functions else ""
    return found


_CHOSEN = ("kernel_kwargs", "num_warps", "num_stages")  # what Inductor's autotuner chooses


def configuration_text(identity: KernelIdentity) -> str:
    """Return the launch configuration: ``grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4``."""
    fields = (
        ("grid ", identity.grid),
        ("block ", identity.block),
        ("", identity.kernel_kwargs or None),
        ("num_warps=", identity.num_warps),
        ("num_stages=", identity.num_stages),
    )
    return " ".join(f"{label}{_shown(value)}" for label, value in fields if value is not None)


def was_autotuned(before: KernelIdentity, after: KernelIdentity) -> bool:
    """Tell whether two kernels of one source differ in what Inductor's autotuner chooses."""
    known = before.source_hash is not None and before.kernel_kwargs is not None
    moved = any(getattr(before, field) != getattr(after, field) for field in _CHOSEN)
    return known and moved and before.source_hash == after.source_hash


def configuration_change(before: KernelIdentity, after: KernelIdentity) -> str:
    """Return what differs between two kernels of one name, for example ``XBLOCK 1024 -> 512,
    num_warps 4 -> 8``.
    """
    pairs = paired_kwargs(before.kernel_kwargs, after.kernel_kwargs)
    # Grid and block follow from the rest where the autotuner's choice is known, and tell it where
    # it is not.
    fields = (
        ("num_warps", "num_stages")
        if any(one != other for _, one, other in pairs)
        else ("num_warps", "num_stages", "grid", "block")
    )
    pairs += [
        (field, _shown(getattr(before, field)), _shown(getattr(after, field))) for field in fields
    ]
    return ", ".join(f"{key} {one} -> {other}" for key, one, other in pairs if one != other)


def paired_kwargs(*texts: str | None) -> list[tuple[str, str, str]]:
    """Return each name in two texts of options, with both values."""
    sides = []
    for text in texts:
        # "XBLOCK=1024,YBLOCK=16": as Inductor writes it on the op
        # (torch/_inductor/runtime/triton_heuristics.py).
        parts = (part.partition("=") for part in (text or "").split(",") if part.strip())
        sides.append({key.strip(): value.strip() for key, _, value in parts})
    old, new = sides
    return [
        (key, old.get(key, "(none)"), new.get(key, "(none)")) for key in dict.fromkeys([*old, *new])
    ]


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


# -- what its code takes ---------------------------------------------------------------------------

# Of a multiprocessor, by architecture: the most warps and blocks that it holds, and its KiB of
# shared memory (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
_LIMITS = {
    "sm_80": (64, 32, 164), "sm_86": (48, 16, 100), "sm_87": (48, 16, 164),
    "sm_89": (48, 24, 100), "sm_90": (64, 32, 228), "sm_100": (64, 32, 228), "sm_103": (64, 32, 228),
    "sm_110": (48, 24, 228), "sm_120": (48, 24, 100), "sm_121": (48, 24, 100),
}  # fmt: skip
# Each has 64 Ki registers in four parts, of which a warp of 32 threads takes a multiple of 256.
# Shared memory comes in units of 128 bytes, and each block has 1 KiB more for the system
# (cuda_occupancy.h of the CUDA toolkit).
_WARP, _PARTS, _PART_REGISTERS, _REGISTER_UNIT, _SHARED_UNIT, _KIB = 32, 4, 16384, 256, 128, 1024


def block_shared_kib(arch: str, unknown: int) -> int:
    """Return the most shared memory that a block may ask for, in KiB; `unknown` for an architecture
    without a table.
    """
    return _LIMITS[arch][2] - 1 if arch in _LIMITS else unknown  # the system has the rest


def occupancy(
    kernel: KernelIdentity, sizes: Resources | None, arch: str, *, sm_count: int | None = None
) -> float | None:
    """Return the share of the warps of a multiprocessor that a kernel can fill. None: not known.

    `sm_count`: of the GPU. With it, a grid that is too small to fill them counts as what it fills.
    The profiler's estimate depends on the grid too, and is 0 for kernels that ask for more than 48
    KiB of shared memory (libkineto's DeviceProperties.cpp).
    """
    if (
        arch not in _LIMITS
        or sizes is None
        or sizes.registers is None
        or sizes.shared_bytes is None
        or not kernel.block
    ):
        return None
    most_warps, most_blocks, kib = _LIMITS[arch]
    warps = max(1, -(-prod(kernel.block) // _WARP))
    registers = max(1, -(-sizes.registers * _WARP // _REGISTER_UNIT)) * _REGISTER_UNIT
    shared = -(-(sizes.shared_bytes + _KIB) // _SHARED_UNIT) * _SHARED_UNIT
    by_registers = _PARTS * (_PART_REGISTERS // registers) // warps
    blocks = min(most_blocks, most_warps // warps, by_registers, _KIB * kib // shared)
    if sm_count and kernel.grid:
        blocks = min(blocks, -(-prod(kernel.grid) // sm_count))
    # it ran: then a limit is not as it is here
    return blocks * warps / most_warps if blocks > 0 else None


@lru_cache(maxsize=4096)
def resources_of(kernel: KernelIdentity, sizes: Resources | None, arch: str) -> dict[str, str]:
    """Return the numbers that are known of a kernel's code: ``{"registers": "64", "occupancy": "50
    %"}``.
    """
    fields = {} if sizes is None else msgspec.structs.asdict(sizes)
    found = {
        name.replace("_", " "): str(value) for name, value in fields.items() if type(value) is int
    }
    share = occupancy(kernel, sizes, arch)
    return found if share is None else found | {"occupancy": f"{100 * share:.0f} %"}
