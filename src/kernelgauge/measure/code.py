"""What is in compiled code: that of Triton's kernels in this process, and of kernels compiled for a
GPU that is not here.
"""

from __future__ import annotations

import gc
import hashlib
import math
import re
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import WorkloadError, WorkloadUnavailable
from ..run import NO_COUNTS, Fingerprint, KernelChoice, Run
from ..trace import Execution, KernelIdentity, KernelRecord, Resources, block_shared_kib, decode
from ..workload import Workload
from .choices import key_of, summary_of, text_of
from .device import Device
from .instance import build, reporting
from .profile import ProfilerSession

# Private classes of Triton and torch that hold loaded code, checked on triton 3.6 and 3.9, torch
# 2.11 and 2.13.
_LOADED = ("CompiledKernel", "StaticallyLaunchedCudaKernel")
_AUTOTUNER = "Autotuner"  # of Triton: several choices of one kernel
_LIBRARIES = ("cublaslt", "cudnn", "cutlass")  # their kernels have plain names, as Triton's have
_WARP = 32
_USUAL_OPTIONS = {
    "num_ctas": 1,
    "enable_fp_fusion": True,
}  # shown where they are others: TRITON_DEFAULT_FP_FUSION sets one
# Instructions by the field of `Resources`. NVIDIA's are those of SASS (CUDA Binary Utilities,
# "Instruction Set Reference"). HADD2.F32 widens a half. AMD's are those of the assembly text.
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][A-Z0-9_]*(?:\.F32)?)")
_INSTRUCTIONS = {
    "tensor_core_instructions": re.compile(
        r"(?:UTC)?[A-Z]G?MMA(?:\.F32)?|v_(?:s?mfma|s?wmmac?)_\w+"
    ),
    "memory_instructions": re.compile(
        r"(?:LD|ST)(?:[GSL]|SM|TM)?|LDGSTS|ATOM[GS]?|REDG?|UTMA(?:LDG|STG|REDG)|UBLK(?:CP|RED)"
        r"|(?:global|buffer|flat|ds|scratch)_(?:load|store|read|write|atomic)_?\w*"
    ),
    "conversions": re.compile(r"U?[FI]2[FI]P?(?:\.F32)?|HADD2\.F32|v_cvt_\w+"),
}


def resources_of_call(session: ProfilerSession) -> list[Resources | None]:
    """Return what the code of each kernel takes, by the profiler; of Triton's kernels, by the code
    in this process too.
    """
    last = session.executions[-1]
    names = {
        each.identity.name
        for each in last
        if each.resources and _may_be_tritons(each.identity.name)
    }
    loaded, tuned = defaultdict[str, list[Any]](list), set[str]()
    objects = gc.get_objects() if names and "triton" in sys.modules else []
    # By kind first: a process with whole models in it has millions of objects, and a few thousand
    # kinds.
    kinds = {id(kind): kind for kind in map(type, objects)}
    name_of = type.__dict__["__name__"].__get__
    ours = {at for at, kind in kinds.items() if name_of(kind) in (*_LOADED, _AUTOTUNER)}
    for each in [each for each in objects if id(type(each)) in ours]:
        if type(each).__name__ == _AUTOTUNER:
            tuned.add(getattr(getattr(each, "base_fn", None), "__name__", ""))
        elif getattr(each, "name", None) in names and hasattr(each, "n_regs"):
            loaded[each.name].append(each)
    possible = [_possible(each, loaded[each.identity.name]) for each in last]
    codes = _codes_of(each for several in possible for each in several)
    return [
        _with_code(launch, [codes[id(each)] for each in several], tuned)
        for launch, several in zip(last, possible, strict=True)
    ]


def _may_be_tritons(name: str) -> bool:
    return name.isidentifier() and decode(name).backend not in _LIBRARIES


def _possible(launch: Execution, loaded: list[Any]) -> list[Any]:
    """Return the loaded kernels that may be the one launched, by their sizes."""
    known = launch.resources or Resources()
    sizes = (known.registers, math.prod(launch.identity.block or (0,)), known.shared_bytes)
    try:
        for place, size in enumerate(sizes):
            loaded = [each for each in loaded if _sizes(each)[place] == size] or loaded
    except AttributeError:  # private fields: those of another version may be others
        return []
    return loaded


def _with_code(
    launch: Execution, codes: Sequence[Resources], tuned: AbstractSet[str]
) -> Resources | None:
    """Return what a launch takes, with what all codes have in common that may be of the kernel
    launched.
    """
    if launch.resources is None:
        return None
    known = msgspec.structs.replace(launch.resources, is_tuned=launch.identity.name in tuned)
    if not codes:
        return known
    first, *others = map(msgspec.structs.asdict, codes)
    common = {
        name: value
        for name, value in first.items()
        if all(other[name] == value for other in others)
    }
    return msgspec.structs.replace(Resources(**common).filled(known), is_tuned=known.is_tuned)


def _sizes(loaded: Any) -> tuple[int, int, int]:
    metadata = getattr(loaded, "metadata", loaded)
    return loaded.n_regs, _WARP * metadata.num_warps, metadata.shared


def _codes_of(loaded: Iterable[Any]) -> dict[int, Resources]:
    """Read compiled kernels, each once. Return what is known of each by its id in this process."""
    distinct = {id(each): each for each in loaded}
    with ThreadPoolExecutor() as pool:  # a disassembler takes 0.3 s for each
        return dict(zip(distinct, pool.map(_code_of, distinct.values()), strict=True))


def _code_of(loaded: Any) -> Resources:
    """Read a compiled kernel: its binary, and of AMD the assembly text.

    Nothing is known of another version's fields.
    """
    try:
        assembly: Any = loaded.asm if hasattr(loaded, "asm") else _cached(loaded)
        elf = assembly.get("cubin") or assembly.get("hsaco")
        counts: dict[str, Any] = {}
        if text := assembly.get("amdgcn"):
            counts = _counts(re.findall(r"^\t(\w+)", text, re.MULTILINE))
        elif elf is not None:
            counts = _sass_counts(elf)
        options: dict[str, Any] = {}
        if source := getattr(loaded, "src", None):
            options = {
                name: getattr(loaded.metadata, name, None)
                for name in ("num_warps", "num_stages", "maxnreg")
            }
            others = {name: getattr(loaded.metadata, name, None) for name in _USUAL_OPTIONS}
            options |= {
                name: value for name, value in others.items() if value != _USUAL_OPTIONS[name]
            }
            options |= {
                source.fn.arg_names[place[0]]: value for place, value in source.constants.items()
            }
            for (place, *_), values in source.attrs.items():
                if divisors := [
                    f"divisible by {number}" for name, number in values if name == "tt.divisibility"
                ]:
                    options[source.fn.arg_names[place]] = " and ".join(divisors)
        plain = {
            name: value for name, value in options.items() if isinstance(value, (int, float, str))
        }
        shown = ",".join(
            f"{name}={value}" for name, value in plain.items() if "," not in str(value)
        )
        # Names of files and lines of code stand in other sections.
        text = b"".join(
            content for name, content in _sections(elf or b"") if name.startswith(b".text")
        )
        code = hashlib.sha256(text).hexdigest()[:8] if elf else None
        return Resources(None, None, loaded.n_spills, code=code, options=shown, **counts)
    except Exception:
        return Resources()


def _cached(loaded: Any) -> dict[str, bytes]:
    """Return the binary of a kernel that Inductor launches without Triton, from Triton's cache."""
    from torch._inductor.runtime import cache_dir_utils, runtime_utils

    folder = Path(cache_dir_utils.triton_cache_dir(torch.cuda.current_device()))
    file = folder / runtime_utils.triton_hash_to_path_key(loaded.hash) / f"{loaded.name}.cubin"
    return {"cubin": file.read_bytes()} if file.exists() else {}


@lru_cache(maxsize=1024)
def _sass_counts(elf: bytes) -> dict[str, int]:
    """Count the instructions of a binary of NVIDIA's by the disassembler in Triton's wheel; empty
    without one.
    """
    import triton

    own = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "nvdisasm"
    tool = own if own.exists() else shutil.which("nvdisasm")
    if tool is None:
        return {}
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(elf)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-c", file.name], capture_output=True, text=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}
    return _counts(_SASS.findall(done.stdout)) if done.returncode == 0 else {}


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {
        field: sum(map(bool, map(each.fullmatch, names))) for field, each in _INSTRUCTIONS.items()
    }


def _sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each section of an ELF file."""
    (start,), (size, count, names) = (
        struct.unpack_from("<Q", elf, 40),
        struct.unpack_from("<HHH", elf, 58),
    )
    headers = [struct.unpack_from("<IIQQQQ", elf, start + place * size) for place in range(count)]
    labels = headers[names][4]  # where their names begin
    for name, *_, at, length in headers:
        yield elf[labels + name :].partition(b"\0")[0], elf[at:][:length]


# -- for a GPU that is not here --------------------------------------------------------------------

# of an H100, for code that asks
_PROPERTIES = {"multiprocessor_count": 132, "max_num_regs": 65_536, "warpSize": _WARP}
_AMD_SHARED_KIB = 64
_REGISTERS, _STACK_BYTES = 0x2F, 0x12  # in .nv.info: EIATTR_REGCOUNT, EIATTR_MIN_STACK_SIZE
_HAS_VALUE = 4  # the form of an attribute: EIFMT_SVAL


class _Target:
    """Takes the place of Triton's driver: kernels are compiled for a GPU by its name, and noted
    where they would be launched.
    """

    def __init__(self, name: str) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler.errors import CompileTimeAssertionFailure
        from triton.runtime.errors import OutOfResources, PTXASError

        self.is_tuning, self.too_large = False, OutOfResources
        # such a choice an autotuner skips
        self.impossible = (OutOfResources, PTXASError, CompileTimeAssertionFailure)
        self.loaded: list[Any] = []
        self.launches: list[tuple[Any, tuple[int, int, int], bool]] = []
        self.choices: list[KernelChoice] = []
        if match := re.fullmatch(r"sm_(\d+)", name):
            self.target = GPUTarget("cuda", int(match[1]), _WARP)
        elif re.fullmatch(r"gfx\w+", name):
            self.target = GPUTarget("hip", name, 64 if name.startswith("gfx9") else _WARP)
        else:
            raise WorkloadError(
                "unknown target",
                got=repr(name),
                expected="sm_90, sm_100, gfx942 or another such name",
            )
        self.shared_bytes = 1024 * block_shared_kib(name, _AMD_SHARED_KIB)
        properties = _PROPERTIES | {"max_shared_mem": self.shared_bytes}
        self.utils = SimpleNamespace(get_device_properties=lambda _: properties)
        self.get_current_target = lambda: self.target
        # Triton keeps the compiled kernels of each device under this
        self.get_current_device = lambda: name
        self.get_current_stream = lambda _: 0
        self.get_active_torch_device = torch.get_default_device

    def load(self, kernel: Any) -> None:
        """Read the sizes that a driver tells when it loads a kernel."""
        if kernel.metadata.shared > self.shared_bytes:
            raise self.too_large(kernel.metadata.shared, self.shared_bytes, "shared memory")
        if text := kernel.asm.get("amdgcn"):
            found = (
                re.search(rf"\.{name}:\s*(\d+)", text)
                for name in ("vgpr_count", "vgpr_spill_count")
            )
            kernel.n_regs, kernel.n_spills = (int(each[1]) if each else None for each in found)
        else:
            kernel.n_regs, stack_bytes = sizes_of_elf(kernel.asm["cubin"])
            kernel.n_spills = stack_bytes // 4
        self.loaded.append(kernel)
        kernel._run = lambda *grid_and_more: self.launches.append(
            (kernel, grid_and_more[:3], self.is_tuning)
        )

    def tune(self, tuner: Any, *arguments: Any, **named: Any) -> None:
        """Launch each choice of an autotuner once: nothing can be timed here."""
        tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
        choices = tuner.prune_configs(named) if len(tuner.configs) > 1 else tuner.configs
        self.is_tuning, key = len(choices) > 1, ",".join(map(str, key_of(tuner, arguments, named)))
        compiled, errors = dict[str, float | None](), list[str]()
        for choice in choices:
            chosen = named | choice.all_kwargs()
            if choice.pre_hook is not None:
                choice.pre_hook(tuner.nargs | chosen)
            try:
                tuner.fn.run(*arguments, **chosen)
                compiled[text_of(choice)] = 0.0
            except self.impossible as error:
                if not self.is_tuning:
                    raise
                compiled[text_of(choice)] = None
                errors.append(summary_of(error))
        kernel = KernelChoice(tuner.base_fn.__name__, key, "", times_us=compiled)
        made = msgspec.structs.replace(kernel, error="".join(errors[:1]))
        if made not in self.choices:  # launched again
            self.choices.append(made)
        self.is_tuning = False

    def kernels(self) -> tuple[KernelRecord, ...]:
        """Return what would have been launched, in order."""
        codes, found = _codes_of(kernel for kernel, *_ in self.launches), []
        for kernel, grid, is_tuned in self.launches:
            block = (self.target.warp_size * kernel.metadata.num_warps, 1, 1)
            identity = KernelIdentity(kernel.name, decode(kernel.name).kind.value, grid, block)
            sizes = Resources(
                kernel.n_regs, kernel.metadata.shared, kernel.n_spills, is_tuned=is_tuned
            )
            found.append(KernelRecord(identity, 0.0, resources=sizes.filled(codes[id(kernel)])))
        return tuple(found)


def sizes_of_elf(elf: bytes) -> tuple[int, int]:
    """Return the registers and the bytes of stack of a thread, as the compiler wrote them into a
    binary of NVIDIA's.
    """
    content, place, largest = dict(_sections(elf))[b".nv.info"], 0, dict[int, int]()
    while place < len(content):
        form, name, size = struct.unpack_from("<BBH", content, place)
        if form == _HAS_VALUE and name in (_REGISTERS, _STACK_BYTES):  # for a function each
            largest[name] = max(
                largest.get(name, 0), struct.unpack_from("<II", content, place + 4)[1]
            )
        place += 4 + size * (form == _HAS_VALUE)
    return largest[_REGISTERS], largest[_STACK_BYTES]


@contextmanager
def _compiling_for(target: str) -> Iterator[_Target]:
    import triton
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner

    driver = _Target(target)
    with (  # a bound method would not get the kernel
        mock.patch.object(triton.runtime.driver, "_active", driver),
        mock.patch.object(CompiledKernel, "_init_handles", lambda kernel: driver.load(kernel)),  # noqa: PLW0108
        mock.patch.object(Autotuner, "run", lambda *given, **named: driver.tune(*given, **named)),  # noqa: PLW0108
    ):
        try:
            yield driver
        finally:
            for kernel in driver.loaded:
                kernel._run = None  # Triton keeps the kernel for the next call
                # it is not loaded here: `resources_of_call`. One may be loaded twice
                vars(kernel).pop("n_regs", None)


_PRODUCTS = {f"aten::{name}" for name in (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "_scaled_mm", "_int_mm", "_grouped_mm",
    "convolution", "convolution_backward", "convolution_overrideable", "convolution_backward_overrideable",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
)}  # fmt: skip


class _ZeroProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Returns zeros for matrix products and the like.

    Without fast bf16 they take hours of a CPU, and no kernel depends on them.
    """

    supports_higher_order_operators = True  # as `torch.library.wrap_triton` is one

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.name() not in _PRODUCTS:
            return op(*args, **(kwargs or {}))
        positional, named = tree_map_only(
            torch.Tensor, lambda each: each.to("meta"), (args, kwargs or {})
        )
        device = next(each.device for each in tree_leaves(args) if isinstance(each, torch.Tensor))
        return tree_map_only(
            torch.Tensor,
            lambda each: torch.zeros_like(each, device=device),
            op(*positional, **named),
        )


def compile_call(workload: Workload, target: str, fingerprint: Fingerprint) -> Run:
    """Call a workload on the host. Compile each Triton kernel that it launches for a target, and
    launch none.

    Raises `WorkloadUnavailable` without Triton, `WorkloadError` if the call or the compiler fails,
    or nothing is launched.
    """
    try:
        import triton
    except ImportError as error:
        what = f"{workload.id}: Triton compiles for {target}, and is not installed"
        raise WorkloadUnavailable(what, next_command="pip install triton") from error
    with reporting(workload, f"compiling for {target}"), _compiling_for(target) as driver:
        instance = build(replace(workload, on_cpu=None), Device())
        with instance.grad_mode(), _ZeroProducts():  # type: ignore[no-untyped-call]
            instance.call()
        kernels, choices = driver.kernels(), tuple(driver.choices)
    if not kernels:
        expected = "a call of kernel[grid](...), with tensors on the CPU or on torch's device meta"
        raise WorkloadError(f"{workload.id}: it launches no Triton kernel", expected=expected)
    names = {each.identity.name for each in kernels}
    counts = msgspec.structs.replace(NO_COUNTS, launches=len(kernels), kernels=len(names))
    of_target: dict[str, Any] = dict.fromkeys(Fingerprint.__struct_fields__) | {
        "device": f"compiled for {target}",
        "arch": target,
        "torch": fingerprint.torch.partition("+")[0],  # of whichever build
        "triton": triton.__version__,
        "liger_kernel": fingerprint.liger_kernel,
        "python": fingerprint.python,
    }
    return Run(workload.id, Fingerprint(**of_target), kernels, counts, samples={}, choices=choices)
