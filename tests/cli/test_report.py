"""``check --report --junit --save-results``, ``doctor --report``: the files are there, also where the answer is no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as xml

import onnx
import pytest
from onnx import parser
from polygraphy.comparator import RunResults

from tests.views.html.browser import browser

pytestmark = pytest.mark.usefixtures("runtime")

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) {
    i = Identity (x) a = Exp (i) y = Tanh (a)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def bridge(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnx_bridge", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_check_writes_what_it_saw(model: Path, tmp_path: Path) -> None:
    files = ("--report", "out.html", "--junit", "out.xml", "--save-results", "out.json")
    done = bridge("check", model, "--target", "ref", "--samples", 2, "--layers", *files, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evidence" not in json.loads(done.stdout)
    assert xml.parse(tmp_path / "out.xml").getroot().get("tests") == "4"
    results = RunResults.load(str(tmp_path / "out.json"))
    assert list(results.keys()) == ["ONNX Runtime", "cleaned on ONNX Runtime", "MIGraphX ref"]
    assert [len(each) for each in results.values()] == [2, 2, 2]
    with browser() as page:
        page.open(tmp_path / "out.html")
        assert page.complaints == []
        assert page.texts("h1") == ["✓ Parity holds"]
        assert len(page.texts("#outputs-table tbody tr")) == 4
        assert len(page.texts("#layers-table tbody tr")) == 2
        assert page.evaluate("document.querySelector('#tensor').length") == 6
        assert "remove-identity" in page.texts("#passes-table")[0]


def test_check_writes_them_where_the_answer_is_no(model: Path, tmp_path: Path) -> None:
    """Against another model, which ends in another operator."""
    (tmp_path / "original.onnx").write_bytes(model.read_bytes().replace(b"Tanh", b"Sinh"))
    against = ("--reference", "original.onnx", "--samples", 2)
    files = ("--report", "o.html", "--junit", "o.xml")
    done = bridge("check", model, "--target", "ref", *against, *files, folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert int(xml.parse(tmp_path / "o.xml").getroot().get("failures", "0")) > 0
    with browser() as page:
        page.open(tmp_path / "o.html")
        assert page.texts("h1") == ["✗ Parity fails"]
        assert "Tanh" in page.texts("#graph h2")[0]


def test_check_writes_them_where_nothing_is_determined(model: Path, tmp_path: Path) -> None:
    """A tolerance that nothing meets: MIGraphX's Exp or Tanh is another than ONNX Runtime's in the last place."""
    exact = ("--rtol", 0, "--atol", 0, "--samples", 20)
    done = bridge("check", model, "--target", "ref", *exact, "--report", "o.html", "--junit", "o.xml", folder=tmp_path)
    assert done.returncode == 4, done.stdout
    assert int(xml.parse(tmp_path / "o.xml").getroot().get("skipped", "0")) > 0
    assert bridge("check", model, "--target", "ref", *exact, "--strict", folder=tmp_path).returncode == 1


def test_doctor_writes_a_page(model: Path, tmp_path: Path) -> None:
    done = bridge("doctor", model, "--report", "out.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with browser() as page:
        page.open(tmp_path / "out.html")
        assert page.texts("h1") == ["✓ Everything will run"]
        assert len(page.texts("#nodes-table tbody tr")) == 3


def test_what_is_written_is_told(model: Path, tmp_path: Path) -> None:
    files = ("--report", "out.html", "--fix", "-o", "fixed.onnx")
    printed = bridge("doctor", model, *files, folder=tmp_path).stdout.splitlines()
    assert printed[-3:] == [
        "written to fixed.onnx",
        "written to out.html",
        "next: onnx-bridge convert fixed.onnx -o model",
    ]
    assert bridge("doctor", model, *files, "--quiet", folder=tmp_path).stdout == ""
    assert "written to" not in bridge("doctor", model, *files, "--json", folder=tmp_path).stdout


def test_the_next_command_after_a_fix_is_right(tmp_path: Path) -> None:
    """The rewritten model has the sizes that were given, and no names for them."""
    onnx.save(parser.parse_model(MODEL.replace("2,3", "batch,3")), tmp_path / "m.onnx")
    done = bridge("doctor", "m.onnx", "--dim", "batch=2", "--fix", "-o", "fixed.onnx", folder=tmp_path)
    then = done.stdout.splitlines()[-1].removeprefix("next: onnx-bridge ").split()
    assert "fixed.onnx" in then
    assert bridge(*then, folder=tmp_path).returncode == 0


def test_the_next_command_keeps_the_gpu(model: Path, tmp_path: Path) -> None:
    done = bridge("doctor", model, "--target", "gpu:gfx1100", folder=tmp_path)
    for verb in ("convert", "check"):
        *_, then = done.stdout.splitlines()
        assert then.startswith(f"next: onnx-bridge {verb} ")
        assert then.endswith(" --target gpu:gfx1100")
        done = bridge(*then.removeprefix("next: onnx-bridge ").split(), folder=tmp_path)
    assert "emulated gfx1100" in done.stdout


def test_a_place_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    done = bridge("doctor", model, "--report", "nowhere/out.html", folder=tmp_path)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
