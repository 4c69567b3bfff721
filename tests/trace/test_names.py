"""Names are real: recorded on an H200, or as public profiles and kernel sources write them."""

from dataclasses import fields

import pytest

from kernelgauge.trace import KernelName, Kind, decode
from tests.builders import RECORDED

# Names with what they decode to: backend, kind and every field that is not at its default.
LINES = (RECORDED.parent / "kernel_names.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.split(" | ", 1) for line in LINES if not line.startswith("#")]


def fields_text(decoded: KernelName) -> str:
    """Return what the file of names says of a name."""
    said = [decoded.backend, decoded.kind.value]
    for field in fields(KernelName):
        value = getattr(decoded, field.name)
        if field.name in ("raw", "kind", "backend") or value in (field.default, decoded.raw):
            continue
        said.append(f"{field.name}={','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(said)


@pytest.mark.parametrize(("expected", "name"), ROWS, ids=[name[:60] for _, name in ROWS])
def test_decode_known_name(expected: str, name: str) -> None:
    assert decode(name).raw == name
    assert fields_text(decode(name)) == expected


def test_decode_name_without_meaning_has_a_text() -> None:
    for name in (
        "operator new",
        "<<<unparseable>>>",
        "",
        "\n",
        "::",
        "<>",
        "void ",
        "void <",
        "triton_",
        "x" * 500,
    ):
        assert (decode(name).kind, bool(decode(name).short.strip())) == (Kind.OTHER, True)


@pytest.mark.parametrize(
    "evil", ["\x1b[2J", "\r\n", "\x07", "\u202e", "\u200b", "\ud800", "\x9b31m", "\u2028"]
)
@pytest.mark.parametrize(
    "around",
    [
        "{}kernel",
        "ker{}nel",
        "triton_poi_fused_{}add_0",
        "void at::native::{}reduce_kernel<float>(int)",
        "{}",
    ],
)
def test_decode_control_characters_are_not_printed(around: str, evil: str) -> None:
    decoded = decode(around.format(evil))
    assert decoded.raw == around.format(evil)
    assert all(text.isprintable() for text in (decoded.short, *decoded.ops, decoded.backend))
