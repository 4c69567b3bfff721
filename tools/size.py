"""How much a reader has to learn: classes, kinds of evidence, tokens, and words of the docs."""

import ast
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
}  # fmt: skip
_REFERENCE = {"api.md", "glossary.md", "reference.md", "results.md"}
_BASES = {"Evidence", "Conclusion", "Reason", "Doubt", "Change"}


def tokens(folder: str) -> int:
    """Return the tokens of a folder's code, without comments and ends of lines."""
    found = 0
    for path in (ROOT / folder).rglob("*.py"):
        with path.open("rb") as file:
            found += sum(each.type not in _LAYOUT for each in tokenize.tokenize(file.readline))
    return found


def classes(folder: str) -> int:
    """Return how many classes a folder has."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")]
    return sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree))


def kinds_of_evidence() -> int:
    """Return the classes of evidence without others below them, and the values of closed sets."""
    names, values = set[str](), 0
    file = ROOT / "src" / "kernelgauge" / "judge" / "evidence.py"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            values += len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1
    assert names > _BASES
    return len(names - _BASES) + values


def pages(folder: str) -> list[Path]:
    """Return the pages in a folder, without those of the reference."""
    return [each for each in sorted((ROOT / folder).glob("*.md")) if each.name not in _REFERENCE]


def words(folder: str) -> int:
    """Return the words of these pages, as `wc -w` counts: code and tables too."""
    return sum(len(each.read_text(encoding="utf-8").split()) for each in pages(folder))


if __name__ == "__main__":
    print(f"classes in src: {classes('src')}")
    print(f"kinds of evidence, with their values: {kinds_of_evidence()}")
    for folder in ("src", "tests", "benchmarks"):
        print(f"tokens in {folder}: {tokens(folder):,}")
    for folder in ("docs", "docs/design"):
        print(f"words in {folder}: {words(folder):,} in {len(pages(folder))} pages")
