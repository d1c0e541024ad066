"""An error says which page explains it, and that page is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from markdown.extensions.toc import slugify
from onnx import parser

from onnx_bridge.core import errors, pages
from passes.core.errors import InputError

ROOT = Path(__file__).parents[2]
SOURCES = [
    path.read_text(encoding="utf-8") for name in ("onnx_bridge", "passes") for path in (ROOT / name).rglob("*.py")
]
PAGES = sorted({page for source in SOURCES for page in re.findall(r'^    page = "(.+)"$', source, re.MULTILINE)})


@pytest.mark.parametrize("page", PAGES)
def test_the_page_and_its_section_are_there(page: str) -> None:
    name, _, section = page.partition("#")
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    headings = {slugify(each.replace("`", ""), "-") for each in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert not section or section in headings, headings


def test_each_failure_of_a_runtime_has_a_page() -> None:
    assert errors.InputError.page is None  # its line says all
    for cls in (errors.ParityError, errors.Unreachable, errors.PassError, *errors.RuntimeFailure.__subclasses__()):
        assert cls.page in PAGES, cls


def test_the_command_line_names_it(tmp_path: Path) -> None:
    onnx.save(
        parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'),
        tmp_path / "m.onnx",
    )
    absent = str(tmp_path / "absent.so")
    command = [sys.executable, "-m", "onnx_bridge", "convert", "m.onnx", "-o", "out", "--runtime", absent]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.endswith("; see `onnx-bridge docs start/install`\n")
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["error"]["page"] == "start/install.md"
    done = subprocess.run(
        [*command[:4], "absent.onnx", "-o", "out"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "docs" not in done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_the_verb_docs_shows_it(page: str) -> None:
    text = pages.read(page.replace(".md", "")).text
    assert text.startswith("#" * (2 if "#" in page else 1) + " ")


def test_pages_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="rejected-model"):
        pages.read("rejected-modl")
