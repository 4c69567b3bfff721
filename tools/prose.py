"""Check the prose of the documents: length and order of sentences, and phrases that
banned_phrases.txt lists.

    python tools/prose.py            every document; exit status 1 if one breaks a rule

A sentence ends with a period, a question mark, a colon or a semicolon. Code, tables, headings and
links' targets do not count. Banned phrases are looked for in docstrings, comments and messages of
the source too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEAN, NINTH_DECILE = 18.0, 28  # words in a sentence of a document
_FEWEST_WORDS = 3
_CODE, _TABLE_OR_HEADING = (
    re.compile(r"```.*?```", re.DOTALL),
    re.compile(r"^(\||#|!|<).*$", re.MULTILINE),
)
_LINK, _ITEM = (
    re.compile(r"\[([^\]]*)\]\([^)]*\)"),
    re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)"),
)
_END = re.compile(r"(?<=[.!?:;])\s+(?=[\"`A-Z(*])")

# "Of the workloads, three ..." and "Its name the kernel has from ...": the subject comes first.
_FRONTED = re.compile(
    r"\W*(?:Of (?!course\b)|(?:Its|Their) (?:\w+ ){1,2}(?:the|a|an|it|they|you|each|every|kernelgauge) (?:\w+ )?"
    r"(?:has|have|is|are|does|do|gets?|takes?|knows?|gives?|reads?)\b)"
)


def documents() -> list[Path]:
    """Return what users read. Notes of the laboratory (docs/design) and examples are not linted."""
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "templates").glob("*.md")),
    ]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text."""
    text = _LINK.sub(r"\1", _TABLE_OR_HEADING.sub("\n", _CODE.sub("", text)))
    for paragraph in _ITEM.split(text):
        yield from (
            each
            for each in _END.split(" ".join(paragraph.split()))
            if len(each.split()) >= _FEWEST_WORDS
        )


def long_sentences(path: Path) -> Iterator[str]:
    """Yield what is wrong with the lengths of a document's sentences."""
    found = sorted(sentences(path.read_text(encoding="utf-8")), key=lambda each: len(each.split()))
    lengths = [len(each.split()) for each in found]
    mean, ninth = (
        sum(lengths) / max(1, len(lengths)),
        lengths[int(0.9 * len(lengths))] if lengths else 0,
    )
    if mean > MEAN or ninth > NINTH_DECILE:
        where = path.relative_to(ROOT)
        yield f"{where}: {mean:.1f} words a sentence (at most {MEAN:g}), ninth decile {ninth} (at most {NINTH_DECILE})"
        yield f"    the longest: {found[-1]}"


def fronted_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text that begin with a genitive."""
    return (each for each in sentences(text) if _FRONTED.match(each))


def figures(paths: list[Path]) -> str:
    """Sum up the lengths of all sentences."""
    texts = (path.read_text(encoding="utf-8") for path in paths)
    lengths = sorted(len(each.split()) for text in texts for each in sentences(text))
    mean, ninth = sum(lengths) / len(lengths), lengths[int(0.9 * len(lengths))]
    return f"{len(lengths)} sentences of {mean:.1f} words, ninth decile {ninth}"


def banned_phrases(rules: Path) -> list[re.Pattern[str]]:
    """Read the rules: a regular expression a line; `#` begins a comment."""
    lines = (
        line.partition("#")[0].strip() for line in rules.read_text(encoding="utf-8").splitlines()
    )
    return [re.compile(line, re.IGNORECASE) for line in lines if line]


def banned(path: Path, rules: list[re.Pattern[str]]) -> Iterator[str]:
    """Yield the lines with a banned phrase."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for rule in rules:
            if match := rule.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {match.group()!r}: {line.strip()}"


def main() -> int:
    """Print what breaks a rule."""
    rules = banned_phrases(Path(__file__).with_name("banned_phrases.txt"))
    source = [
        each
        for folder in ("src", "perf", "benchmarks")
        for each in sorted((ROOT / folder).rglob("*.py"))
    ]
    wrong = [line for path in documents() for line in long_sentences(path)]
    for path in documents():
        found = fronted_sentences(path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(ROOT)}: the subject comes first: {each}" for each in found]
    wrong += [line for path in (*documents(), *source) for line in banned(path, rules)]
    print(
        "\n".join(wrong)
        or f"prose: {len(documents())} documents, {figures(documents())}; {len(rules)} phrases"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
