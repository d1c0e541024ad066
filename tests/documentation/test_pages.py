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

from docs.generator import blocks, coverage, execute, picture
from docs.generator.folder import prepare
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


def test_what_makes_the_models_may_be_missing(tmp_path: Path) -> None:
    code = "import sys; sys.modules['transformers'] = None; from docs.generator import folder; folder.main()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=blocks.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "Traceback" not in done.stderr
    assert "transformers" in done.stderr
    assert "make setup" in done.stderr


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


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("program  bert.mxr (571 KiB)", "program  bert.mxr (1.2 MiB)"),
        ("seconds  clean 3.69, write 0.01, prove 12 proven", "seconds  clean 4, write 2, prove 0.5\nproven"),
        ("made     2026-11-22T23:20:25+00:00", "made     2027-01-01T00:00:00+00:00"),
        ("float32[2, 16, 64]  7.15e-07  1  142.7  agrees", "float32[2, 16, 64]  0  0.99998  143  agrees"),
        (
            "y0  float32[10, 6]  10.6  11  0.48  -0.8  not determined",
            "y0  float32[10, 6]  9.6  8.2  0.5  1  not determined",
        ),
        ("8 tokens in 0.544 s", "8 tokens in 2 min"),
        ("MIGraphX 2.14.0, 94.7% of the work", "MIGraphX 2.16.0, 100% of the work"),
    ],
)
def test_what_is_measured_is_not_compared(shown: str, printed: str) -> None:
    assert blocks.words(shown) == blocks.words(printed)


@pytest.mark.parametrize(
    "shown, printed",
    [
        ("passes  36, with 67 rewrites", "passes  38, with 67 rewrites"),
        ("passes  38, with 8 rewrites", "passes  38, with 21 rewrites"),
        ("fuse-gemm  68 → 56  12  –  0.001", "fuse-gemm  68 → 57  12  –  0.001"),
        ("float32[2, 16, 64]  7.15e-07  agrees", "float32[2, 8, 64]  7.15e-07  agrees"),
        ("MIGraphX ref  4.77e-07  130.9  agrees", "MIGraphX ref  4.76837e-07  130.9  agrees"),
        ("64 nodes are computed in fp16", "52 nodes are computed in fp16"),
    ],
)
def test_what_is_counted_is_compared(shown: str, printed: str) -> None:
    assert blocks.words(shown) != blocks.words(printed)


def test_the_picture_is_what_the_guide_shows() -> None:
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.picture()


def test_the_readme_is_short() -> None:
    assert len((blocks.ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_figures_of_the_readme() -> None:
    """They are those of the last whole run of `make suite NAME=conformance`."""
    found = json.loads(coverage.DATA.read_text())
    outcomes = found["outcomes"]
    text = " ".join((blocks.ROOT / "README.md").read_text().split())
    wholly = outcomes["wholly"] + outcomes["frozen"]
    assert f"Of the {found['tests']:,} backend tests" in text
    assert f"by itself gets {found['stock']:,} right. Here {wholly:,} are right wholly" in text
    assert f"{outcomes['host']} more with a part on ONNX Runtime" in text


def test_every_verb_is_in_the_readme() -> None:
    from onnx_bridge.cli.main import VERBS

    table = (blocks.ROOT / "README.md").read_text().partition("## Verbs")[2]
    for verb in VERBS:
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
