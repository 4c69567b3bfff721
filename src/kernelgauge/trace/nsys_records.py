"""What ran on the devices, out of an export of Nsight Systems, in the words of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .model import ApiCall, DeviceRecord
from .nsys_ranges import Clock
from .nsys_tables import CopyRow, DeviceRow, Export, KernelRow, MemsetRow

__all__ = ["Correlations", "records_of"]

# Kineto's words (libkineto/src/cupti_strings.cpp) for ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND.
_COPIES = dict(enumerate("<unknown> HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP".split()))
_MIGRATIONS = frozenset({11, 12, 13})
_MEMORIES = dict(
    enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"))
)
_THREADS = 2**24  # the lowest bits of a serialised id tell the threads of a process apart
_PROCESSES_APART = 2**32  # CUPTI counts correlations in 32 bits

_Three = tuple[int, int, int]


class Correlations:
    """Makes the correlations of several processes unique: the processes are numbered as they come."""

    def __init__(self) -> None:
        self._processes: dict[int, int] = {}

    def of(self, correlation: int | None, serialised: int | None) -> int | None:
        """`serialised`: the id of the process, or of one of its threads."""
        if correlation is None or serialised is None:
            return correlation
        process = serialised - serialised % _THREADS
        return correlation + _PROCESSES_APART * self._processes.setdefault(process, len(self._processes))


def records_of(
    export: Export, clock: Clock, correlations: Correlations, calls: Sequence[ApiCall]
) -> tuple[DeviceRecord, ...]:
    """Kernels, memsets and copies by start, each with the external id of the call that asked for it.

    Raises `TraceError` for a kernel without a name.
    """
    external_ids = {call.correlation: call.external_id for call in reversed(calls)}  # the first call's
    records = _Records(clock, correlations, external_ids)
    found = [*_kernels(export, records), *_memsets(export, records), *_copies(export, records)]
    found.sort(key=lambda record: (record.start_us, -record.duration_us))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Records:
    clock: Clock
    correlations: Correlations
    external_ids: Mapping[int | None, int | None]  # by correlation

    def of(
        self,
        row: DeviceRow,
        category: str,
        name: str,
        *,
        grid: _Three | None = None,
        block: _Three | None = None,
        size: int | None = None,
    ) -> DeviceRecord:
        correlation = self.correlations.of(row.correlation_id, row.global_pid)
        return DeviceRecord(
            category,
            name,
            self.clock.us(row.start),
            (row.end - row.start) / 1000,
            row.device_id or 0,
            row.stream_id or 0,
            correlation,
            self.external_ids.get(correlation),
            grid,
            block,
            size,
        )


def _kernels(export: Export, records: _Records) -> Iterator[DeviceRecord]:
    names = export.texts(KernelRow, "demangledName")
    for row in export.rows(KernelRow):
        name = export.text(names, row.demangled_name, KernelRow)
        grid, block = _three(row.grid_x, row.grid_y, row.grid_z), _three(row.block_x, row.block_y, row.block_z)
        yield records.of(row, "kernel", name, grid=grid, block=block)


def _memsets(export: Export, records: _Records) -> Iterator[DeviceRecord]:
    for row in export.rows(MemsetRow):
        yield records.of(row, "gpu_memset", f"Memset ({_memory(row.mem_kind)})", size=row.bytes)


def _copies(export: Export, records: _Records) -> Iterator[DeviceRecord]:
    for row in export.rows(CopyRow):
        if row.copy_kind not in _MIGRATIONS:
            kind = _COPIES.get(row.copy_kind or 0, "<unknown>")
            name = f"Memcpy {kind} ({_memory(row.src_kind)} -> {_memory(row.dst_kind)})"
            yield records.of(row, "gpu_memcpy", name, size=row.bytes)


def _memory(kind: int | None) -> str:
    return "Unknown" if kind is None else _MEMORIES.get(kind, "Unrecognized")


def _three(x: int | None, y: int | None, z: int | None) -> _Three | None:
    return None if x is None or y is None or z is None else (x, y, z)
