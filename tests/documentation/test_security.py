"""docs/security.md: each statement names a test, and each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names() -> None:
    text = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(), f"{file}::{test}"


def test_the_architecture_leads_to_it() -> None:
    assert "(security.md)" in (ROOT / "docs/architecture.md").read_text()
