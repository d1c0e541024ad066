"""A browser for the tests of a page; each of their modules has a fixture ``file``, which is that page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.views.html.browser import Page, browser


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(window: Page, file: Path) -> Page:
    window.show(1300)
    window.open(file)
    return window
