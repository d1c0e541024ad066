"""Every kind of page, light and dark, wide and narrow, by axe; and a page of 20,000 nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_bridge.conversion.diagnosis.diagnosis import PlannedAction
from onnx_bridge.views.html.check import page_of
from onnx_bridge.views.html.html import Cell, Column, Page, Row, Share, Table
from tests.views.html.browser import Page as Window
from tests.views.html.scenes import scene

AXE = Path(__file__).with_name("axe.min.js")
MANY = 20_000


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "check.html"
    found = scene()
    page_of(found.report, evidence=found.evidence).write(path)
    return path


def large(count: int) -> Page:
    """A page like that of `doctor`, of a model with so many nodes."""
    columns = (Column("#", "number"), Column("node", "name"), Column("operator", "code"), Column("verdict", "verdict"))
    rows = [
        Row([Cell(str(i), i), Cell(f"node_{i}"), Cell("Relu"), Cell("ok", colour="good")], choice="unchanged")
        for i in range(count)
    ]
    return Page(
        kind="doctor",
        model="large",
        passed=True,
        headline="Everything will run",
        sentences=["It is large."],
        facts=[("nodes", str(count))],
        notes=[],
        tables=[Table("nodes", "Every node", columns, rows)],
        shares=[Share(PlannedAction.UNCHANGED, count, "good")],
    )


def violations(window: Window) -> list[Any]:
    window.evaluate(f"{AXE.read_text(encoding='utf-8')};0")
    script = "axe.run().then((found) => found.violations.map((v) => [v.id, v.nodes.map((n) => n.html).slice(0, 3)]))"
    return list(window.evaluate(script))


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (1300, True), (390, False)])
def test_a_check(window: Window, checked: Path, width: int, dark: bool) -> None:
    window.show(width, dark=dark)
    window.open(checked)
    assert violations(window) == []


def test_a_diagnosis(window: Window, tmp_path: Path) -> None:
    large(20).write(tmp_path / "doctor.html")
    window.show(1300)
    window.open(tmp_path / "doctor.html")
    assert violations(window) == []


def test_axe_finds_what_is_wrong(window: Window, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<!doctype html><title>t</title><img src='data:,'><p style='color:#eee'>pale</p>"
    )
    window.open(tmp_path / "bad.html")
    assert {"image-alt", "html-has-lang", "color-contrast"} <= {name for name, _ in violations(window)}


def test_many_nodes(window: Window, tmp_path: Path) -> None:
    """A part of the rows is laid out; the filter finds all of them, and a button shows them."""
    large(MANY).write(tmp_path / "large.html")
    window.show(1300)
    window.open(tmp_path / "large.html")
    shown = "document.querySelectorAll('#nodes-table tbody tr:not([hidden])').length"
    assert window.evaluate(shown) == 1000
    window.evaluate(
        f"(() => {{ const e = document.querySelector('input[data-table=nodes]'); e.value = 'node_{MANY - 1}';"
        "e.dispatchEvent(new Event('input')); })()"
    )
    assert window.texts("#nodes-table tbody tr td:nth-child(2)") == [f"node_{MANY - 1}"]
    assert window.texts("button.more") == []
    window.evaluate(
        "(() => { const e = document.querySelector('input[data-table=nodes]'); e.value = '';"
        "e.dispatchEvent(new Event('input')); document.querySelector('button.more').click(); })()"
    )
    assert window.evaluate(shown) == MANY
    assert window.complaints == []
