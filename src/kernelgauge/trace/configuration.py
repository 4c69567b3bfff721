"""Launch configurations: what differs between two launches of one kernel, and whether the autotuner chose it."""

from __future__ import annotations

from .kernel import KernelIdentity

__all__ = ["configuration_change", "configuration_text", "was_autotuned"]

_CHOSEN = ("kernel_kwargs", "num_warps", "num_stages")  # what Inductor's autotuner chooses


def configuration_text(identity: KernelIdentity) -> str:
    """The launch configuration: ``grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4``."""
    parts = [
        f"{label} {'x'.join(map(str, value))}"
        for label, value in (("grid", identity.grid), ("block", identity.block))
        if value is not None
    ]
    parts += [identity.kernel_kwargs] if identity.kernel_kwargs else []
    parts += [
        f"{label}={value}"
        for label, value in (("num_warps", identity.num_warps), ("num_stages", identity.num_stages))
        if value is not None
    ]
    return " ".join(parts)


def was_autotuned(before: KernelIdentity, after: KernelIdentity) -> bool:
    """Whether two kernels of one source differ in what Inductor's autotuner chooses."""
    known = before.source_hash is not None and before.kernel_kwargs is not None
    moved = any(getattr(before, field) != getattr(after, field) for field in _CHOSEN)
    return known and moved and before.source_hash == after.source_hash


def configuration_change(before: KernelIdentity, after: KernelIdentity) -> str:
    """What differs between two kernels of one name, for example ``XBLOCK 1024 -> 512, num_warps 4 -> 8``."""
    differences = [
        f"{key} {old} -> {new}"
        for key, old, new in _zip_kwargs(before.kernel_kwargs, after.kernel_kwargs)
        if old != new
    ]
    # Grid and block follow from the rest where the autotuner's choice is known, and tell it where it is not.
    fields = ("num_warps", "num_stages") if differences else ("num_warps", "num_stages", "grid", "block")
    for field in fields:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            differences.append(f"{field} {_shown(old)} -> {_shown(new)}")
    return ", ".join(differences)


def _zip_kwargs(before: str | None, after: str | None) -> list[tuple[str, str, str]]:
    old, new = _parse_kwargs(before), _parse_kwargs(after)
    return [(key, old.get(key, "(none)"), new.get(key, "(none)")) for key in dict.fromkeys([*old, *new])]


def _parse_kwargs(text: str | None) -> dict[str, str]:
    # "XBLOCK=1024,YBLOCK=16": as Inductor writes it on the op (torch/_inductor/runtime/triton_heuristics.py).
    pairs = (part.partition("=") for part in (text or "").split(",") if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
