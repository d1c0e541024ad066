"""The examples run as they are, each in an empty folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generator.blocks import ROOT
from onnx_bridge.migraphx.runtime import Runtime

FOLDER = ROOT / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str, runtime: Runtime, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, shutil.copy(FOLDER / name, tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook(name: str, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / name, as_version=4)
    assert any(cell.get("outputs") for cell in notebook.cells), "a viewer shows what they do"
    assert all(output.output_type != "error" for cell in notebook.cells for output in cell.get("outputs", ()))
    assert (FOLDER / name).stat().st_size < 30_000
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_the_list_has_them_all() -> None:
    text = (FOLDER / "README.md").read_text()
    assert len(SCRIPTS) >= 4
    for name in (*SCRIPTS, *NOTEBOOKS):
        assert f"[{name}]({name})" in text, name
