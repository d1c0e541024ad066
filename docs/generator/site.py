"""The hook of MkDocs: the pages that are not files of ``docs/``, made when the site is built (``make docs``).

The reference is generated from the code's own definitions; the overview is the README.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from docs.generator import (
    api_reference,
    bundle_format,
    cli_reference,
    coverage,
    error_reference,
    pass_reference,
    pictures,
    versions,
)

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
_OF_THE_ROOT = {
    "README.md": "start/overview.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "CHANGELOG.md": "development/changelog.md",
    "examples/README.md": "start/examples.md",
}
"""Files of the repository's root, and the pages that they become."""
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)([^)]*)\)")
GENERATED = {
    "concepts/bundle-format.md": bundle_format.page,
    "reference/cli.md": cli_reference.page,
    "reference/api.md": api_reference.page,
    "reference/passes.md": pass_reference.passes_page,
    "reference/rules.md": pass_reference.rules_page,
    "reference/errors.md": error_reference.page,
    "reference/operators.md": coverage.page,
    "reference/versions.md": versions.page,
}
"""The pages of the reference that are made from code or from results, each with the function that writes it."""


def on_pre_build(config: MkDocsConfig) -> None:
    """Draw the pictures."""
    pictures.write()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, before the navigation is made."""
    from mkdocs.structure.files import File

    made = {page: write() for page, write in GENERATED.items()}
    made |= {page: moved(ROOT / name, page) for name, page in _OF_THE_ROOT.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def moved(file: Path, page: str) -> str:
    """The text of a file of the root, with links as they are from its page; what is no page is named without a link."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match.groups()
        if target not in _OF_THE_ROOT and not target.startswith("docs/"):
            return label
        place = os.path.relpath(_OF_THE_ROOT.get(target, target.removeprefix("docs/")), Path(page).parent)
        return f"[{label}]({place}{anchor})"

    return _LINK.sub(link, file.read_text(encoding="utf-8"))
