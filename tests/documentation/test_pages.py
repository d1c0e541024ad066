"""What the README and the pages of docs/ show works: every command, with what it prints, and every piece of Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.documentation import blocks, coverage, execute, picture
from fixtures.documentation.folder import prepare
from onnx_bridge.migraphx.runtime import Runtime

NAMES = [str(page.relative_to(blocks.ROOT)) for page in blocks.PAGES]


@pytest.fixture
def folder(runtime: Runtime, exported: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a short path, so that lines are folded as for a user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        execute.link_cache(folder, tmp_path_factory.getbasetemp().parent / "verdicts")
        prepare(folder, lambda name, path: shutil.copyfile(exported(name, dynamic_batch=True), path))
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page(name: str, folder: Path) -> None:
    found = list(blocks.blocks((blocks.ROOT / name).read_text()))
    assert found
    for block in found:
        printed = execute.outputs(block, folder)
        for command, shown in block.commands:
            assert shown.strip(), f"{command}: its output is not shown"
            if block.varies:  # what comes first does not: headings
                shown, printed[command] = (text.partition("\n")[0] for text in (shown, printed[command]))
            assert blocks.words(shown) == blocks.words(printed[command]), f"{command}\n{printed[command]}"


def test_the_pages_are_found() -> None:
    assert "README.md" in NAMES
    assert len(NAMES) > 10


@pytest.mark.parametrize("name", NAMES)
def test_no_output_names_a_host(name: str) -> None:
    text = (blocks.ROOT / name).read_text()
    outputs = [shown for block in blocks.blocks(text) for _, shown in block.commands]
    assert {host for each in outputs for host in re.findall(r"://([\w.-]+)", each)} <= {"packages.example"}


def test_words() -> None:
    shown = "bert: largest error 7.15e-07\nproven  at real size, 0.1 s"
    assert blocks.words(shown) == blocks.words("bert: largest\n  error 4.2e-06 proven at real size, 12 s")
    assert blocks.words(shown) != blocks.words(shown.replace("proven", "refused"))
    assert blocks.words(shown) != blocks.words(shown + " wrong")


def test_the_picture_is_what_the_guide_shows() -> None:
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.picture()


def test_the_readme_is_short() -> None:
    assert len((blocks.ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_figures_of_the_readme() -> None:
    """They are those of the last whole run of `make conformance`."""
    found = json.loads(coverage.DATA.read_text())
    outcomes = found["outcomes"]
    text = " ".join((blocks.ROOT / "README.md").read_text().split())
    wholly = outcomes["wholly"] + outcomes["frozen"]
    assert f"Of the {found['tests']:,} backend tests" in text
    assert f"by itself gets {found['stock']:,} right. Here {wholly:,} are right wholly" in text
    assert f"{outcomes['host']} more with a part on ONNX Runtime" in text


def test_every_verb_is_in_the_readme() -> None:
    from onnx_bridge.cli.main import _VERBS

    table = (blocks.ROOT / "README.md").read_text().partition("## Verbs")[2]
    for verb in _VERBS:
        assert re.search(rf"^\| .*`{verb}`.* \|", table, re.MULTILINE), verb


def test_demo(runtime: Runtime, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(blocks.ROOT)!r}); from fixtures import demo; sys.exit(demo.main())",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("ResNet", "BERT", "holds", "parse", "MIGraphX"):
        assert word in done.stdout
    assert (tmp_path / "demo-output/bert/bert.mxr").exists()
