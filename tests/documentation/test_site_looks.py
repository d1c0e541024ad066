"""The site as a browser shows it: nothing for axe to find, nothing cut, on wide and narrow screens, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.views.html.browser import Page, browser
from tests.views.html.test_accessibility import violations

PAGES = (
    "index",
    "start/first-model",
    "guides/olive",
    "guides/vision",
    "reference/cli",
    "reference/operators",
    "reference/api",
    "reference/passes",
    "decoders",
)


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width, dark", [(1440, False), (1280, True), (390, False)])
def test_a_page(built: Path, window: Page, name: str, width: int, dark: bool) -> None:
    window.show(width, dark=dark)
    window.open(built / f"{name}.html")
    assert window.evaluate("document.documentElement.scrollWidth") == width
    assert violations(window) == []


@pytest.mark.slow
def test_the_front_page(built: Path, window: Page) -> None:
    window.show(1440)
    window.open(built / "index.html")
    assert window.texts("h1")[0].startswith("ONNX Bridge")
    assert len(window.texts(".hero pre")) == 1
    loaded = "[...document.images].every((image) => image.naturalWidth > 0)"
    assert window.evaluate(f"new Promise((done) => setTimeout(() => done({loaded}), 200))")
    sizes = "['.hero pre code', 'html'].map((each) => parseFloat(getComputedStyle($(each)).fontSize))"
    code, root = window.evaluate(f"(($) => {sizes})((each) => document.querySelector(each))")
    assert code >= 0.8 * root


@pytest.mark.slow
def test_the_table_of_operators_fits_a_narrow_screen(built: Path, window: Page) -> None:
    window.show(390)
    window.open(built / "reference/operators.html")
    table = "document.querySelector('.md-typeset__scrollwrap')"
    assert window.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
