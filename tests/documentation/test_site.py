"""The site is built strictly, needs nothing from elsewhere, and its reference has all that the code defines."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import onnx_bridge
import passes
from docs.generator import pictures, site
from onnx_bridge.cli.main import VERBS
from passes.legalize import FAMILIES

_ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(https?:)?//""")


@pytest.mark.slow
def test_it_needs_nothing_from_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        assert not _ELSEWHERE.search(page.read_text()), page
    for style in built.rglob("*.css"):
        assert "url(http" not in style.read_text(), style


@pytest.mark.slow
def test_search_works_from_files(built: Path) -> None:
    """The index is a script as well, which a page opened as a file may load."""
    assert "legalize" in (built / "search/search_index.js").read_text()
    assert "iframe-worker" in (built / "index.html").read_text()


def test_every_definition_is_in_the_reference() -> None:
    pages = {name: write() for name, write in site.GENERATED.items()}
    for verb in VERBS:
        assert re.search(rf"^## {verb}$", pages["reference/cli.md"], re.MULTILINE), verb
    for name in set(onnx_bridge.__all__) - {"__version__"}:
        assert re.search(rf"^::: onnx_bridge\.\S+\.{name}$", pages["reference/api.md"], re.MULTILINE), name
    for name in passes._BUILT_IN:
        assert re.search(rf"^## {name}$", pages["reference/passes.md"], re.MULTILINE), name
    for family in FAMILIES:
        assert re.search(rf"^## {re.escape(family)}$", pages["reference/rules.md"], re.MULTILINE), family


def test_the_pictures_are_drawn_from_the_results() -> None:
    for name, picture in pictures.pictures().items():
        assert (pictures.ASSETS / name).read_text() == picture, "python -m docs.generator.pictures"
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_every_environment_variable_is_in_the_reference() -> None:
    text = (site.ROOT / "docs/reference/environment.md").read_text()
    sources = [path.read_text() for root in ("onnx_bridge", "passes") for path in (site.ROOT / root).rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"\bONNX_BRIDGE_[A-Z]+\b", source)}
    assert len(named) >= 2
    for name in named:
        assert f"`{name}`" in text, name
