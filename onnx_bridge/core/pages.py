"""The pages of the documentation, which are installed with the package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.schema import JsonRecord

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = ("start", "guides", "concepts", "reference", ".")
"""The folders of ``docs/`` with pages for users, as the wheel has them."""


@dataclass(frozen=True)
class Page(JsonRecord):
    """A page of the documentation.

    Attributes:
        topic: its path, without suffix.
        title: its heading.
        text: the page, or a section of it, as Markdown; empty in a list of pages.
    """

    topic: str
    title: str
    text: str = ""


@dataclass(frozen=True)
class Pages(JsonRecord):
    """The pages of the documentation."""

    pages: tuple[Page, ...]


def read(topic: str) -> Page:
    """Return a page, or its section after ``#``; raises InputError if there is none."""
    pages = _pages()
    name, _, section = topic.removesuffix("/").partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")
    matching = [known for known in pages if known == name or known.rpartition("/")[2] == name]
    if not matching:
        short = {known.rpartition("/")[2]: known for known in pages}
        counts = {known: path.read_text(encoding="utf-8").lower().count(name.lower()) for known, path in pages.items()}
        about = sorted(filter(counts.get, counts), key=lambda known: -counts[known])[:3]
        hint = f"pages about it: {', '.join(about)}" if about else nearest(name, [*pages, *short])
        raise InputError(f"there is no page {name!r}", hint=hint or "`onnx-bridge docs` lists the pages")
    path = pages[matching[0]]
    text = path.read_text(encoding="utf-8")
    return Page(matching[0], _title(path), _section(text, section) if section else text)


def _section(text: str, slug: str) -> str:
    """Return the section of a heading with its subsections; the whole text if there is none of this name."""
    lines, begin, depth = text.splitlines(keepends=True), None, 0
    for index, line in enumerate(lines):
        heading = re.match(r"(#+) (.+)", line)
        if heading and begin is not None and len(heading[1]) <= depth:
            return "".join(lines[begin:index])
        if heading and begin is None and re.sub(r"[^\w]+", "-", heading[2].lower()).strip("-") == slug:
            begin, depth = index, len(heading[1])
    return text if begin is None else "".join(lines[begin:])


def listed() -> Pages:
    """Return all pages, without their texts."""
    return Pages(tuple(Page(name, _title(path)) for name, path in _pages().items()))


def _pages() -> dict[str, Path]:
    """Return the files of the pages by topic."""
    installed = _PACKAGE / "pages"
    root = installed if installed.is_dir() else _PACKAGE.parent / "docs"  # in a checkout
    files = [file for folder in _FOLDERS for file in sorted((root / folder).glob("*.md")) if file.name != "index.md"]
    if not files:
        raise InputError("the pages are not installed", where=str(root), hint="install the package again")
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def _title(path: Path) -> str:
    """Return the first heading of a page."""
    with path.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), path.stem)
