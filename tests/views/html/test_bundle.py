"""The page of a bundle: a model card."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.convert import convert
from onnx_bridge.views.html.bundle import page_of as bundle_page
from tests.views.html.browser import browser

MODEL = """<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) {
    a = Identity (x)
    b = Mish (a)
    s = Cast <to = 8> (b)
    c = Cast <to = 1> (s)
    y = Neg (c)
}"""


@pytest.fixture(scope="module")
def bundle(runtime: object, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("card")
    onnx.save(parser.parse_model(MODEL), folder / "model.onnx")
    return convert(folder / "model.onnx", folder / "model", target="ref")


def test_what_it_says(bundle: Bundle) -> None:
    manifest, page = bundle.manifest, bundle_page(bundle.manifest)
    assert (page.passed, page.headline) == (True, "Proven at real size")
    facts = dict(page.facts)
    assert facts["SHA-256 of the source"] == manifest.source["sha256"]
    assert facts["version of migraphx"] == manifest.versions["migraphx"]
    tables = {each.id: each for each in page.tables}
    assert [[cell.text for cell in row.cells] for row in tables["tensors"].rows] == [
        ["input", "x", "float32", "2 × 3"],
        ["output", "y", "float32", "2 × 3"],
    ]
    rewritten = {row.cells[0].text for row in tables["passes"].rows}
    assert rewritten == {each["name"] for each in manifest.program.passes if each["rewrites"]}
    assert rewritten
    assert {row.cells[0].text for row in tables["files"].rows} == {each.file for each in manifest.files}
    assert sum(each.count for each in page.shares) == sum(each.nodes for each in manifest.partitions)


def test_the_verb(bundle: Bundle, tmp_path: Path) -> None:
    page = tmp_path / "card.html"
    command = [sys.executable, "-m", "onnx_bridge", "inspect", "--report", str(page)]
    assert subprocess.run([*command, str(bundle.path)], check=False).returncode == 0
    with browser() as window:
        window.show(390)
        window.open(page)
        assert window.complaints == []
        assert window.evaluate("document.documentElement.scrollWidth") == 390
        assert window.texts("h1") == ["✓ Proven at real size"]
    done = subprocess.run([*command, str(bundle.model_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "only a bundle" in done.stderr
