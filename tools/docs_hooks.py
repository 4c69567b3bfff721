"""Hooks of MkDocs: pages of the root of the repository, reference from the code, and links between
all of them.

Pages are written for the repository's own view of its files; this makes them work as a site. A link
to a file that is no page of the site becomes text, and is reported if there is no such file.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from reference import PARTS

ROOT = Path(__file__).resolve().parents[1]
# Pages that stay where people look for them in a repository, and their places in the site.
_ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_HOME_OF = {place: page for page, place in _ROOT_PAGES.items()}
_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(
    r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)"[^>]*>\s*'
    r'<img alt="(?P<alt>[^"]*)"\s+src="(?P<light>[^"]+)"[^>]*>\s*'
    r"</picture>"
)
_SWITCHED = "\n".join(
    rf'![\g<alt>](\g<{each}>#only-{each}){{ width="600" }}' for each in ("light", "dark")
)
_REFERENCE = re.compile(r"<!-- reference: ([a-z ]+) -->")
_log = logging.getLogger("mkdocs.hooks.kernelgauge")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root of the repository."""
    for page, place in _ROOT_PAGES.items():
        files.append(
            File.generated(config, place, content=(ROOT / page).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Put the generated reference into a page, and turn links of the repository into links of the
    site.
    """
    place = page.file.src_uri
    markdown = _REFERENCE.sub(lambda match: PARTS[match[1]](), markdown)
    # The colours of the site have a switch of their own, which <picture> knows nothing of.
    markdown = _PICTURE.sub(_SWITCHED, markdown)
    return relinked(markdown, place, files)


def relinked(markdown: str, place: str, files: Files) -> str:
    """Return the Markdown of a page with its links as the site needs them."""
    source = _HOME_OF.get(place, f"docs/{place}")

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = _ROOT_PAGES.get(file) or (
            file.removeprefix("docs/") if file.startswith("docs/") else ""
        )
        if there and files.get_file_from_path(there):
            relative = posixpath.relpath(there, posixpath.dirname(place) or ".")
            if text.endswith(path) and not image:  # a reader of the site sees titles, not files
                text = _title(file)
            return f"{image}[{text}]({relative}{'#' + anchor if anchor else ''})"
        if not (ROOT / file).exists():
            _log.warning("%s: link to %s, which does not exist", source, target)
        return text

    return "".join(
        part if part.startswith("```") else _LINK.sub(link, part) for part in _BLOCK.split(markdown)
    )


def _title(file: str) -> str:
    heading = re.search(r"^# (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1] if heading else file
