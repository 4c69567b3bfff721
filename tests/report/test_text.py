"""One page, as text and as Markdown; what stands in it may come from a stranger's trace."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from kernelgauge.report.text import Column, Section, as_markdown, as_text

KERNEL = "kernel<8, c10::BFloat16>(int #include)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("a | b", "a \\| b"),
        ("[click](https://example.org)", "\\[click\\](https\\://example.org)"),
        ("www.example.org", "www\\.example.org"),
        ("`code`", "\\`code\\`"),
        ("**bold** __init__", "\\*\\*bold\\*\\* \\__init_\\_"),
        (":rocket:", "\\:rocket:"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("vectorized_elementwise_kernel at::native", "vectorized_elementwise_kernel at::native"),
        ("\x1b[31mred\u202e", "\\\\x1b\\[31mred\\\\u202e"),
    ],
)
def test_markdown_name_is_no_markup(name: str, shown: str) -> None:
    assert as_markdown([Section(lines=(name,))]) == f"{shown}\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("@someone", "@\u200bsomeone"),
        ("see #12", "see #\u200b12"),
        ("a@b.c", "a@\u200bb.c"),
        ("\\@x", "\\@\u200bx"),
        (KERNEL, KERNEL.replace("<", "&lt;").replace(">", "&gt;")),
    ],
)
def test_markdown_name_is_no_mention_and_no_issue(name: str, shown: str) -> None:
    assert MarkdownIt("commonmark").render(as_markdown([Section(lines=(name,))])) == f"<p>{shown}</p>\n"


def test_text_long_lines_and_names_fit_the_width() -> None:
    table = Section(columns=(Column("n"), Column("us", number=True)), rows=[("k" * 10_000, "1.0")])
    shown = as_text([Section(lines=("word " * 30,)), table], width=80, color=False)
    assert max(map(len, shown.splitlines())) <= 80
    assert (shown.count("word"), shown.count("k")) == (30, 10_000)
