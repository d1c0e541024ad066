"""What the README says works: every command in it, its Python, and the demo."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import passes
from fixtures import readme
from onnx_bridge.migraphx.runtime import Runtime

TEXT = readme.README.read_text()


@pytest.fixture
def folder(runtime: Runtime, exported: Callable[..., Path], tmp_path: Path) -> Path:
    readme.prepare(tmp_path, lambda name, path: shutil.copyfile(exported(name, dynamic_batch=True), path))
    return tmp_path


def test_every_command_and_snippet(folder: Path) -> None:
    commands = readme.commands(TEXT)
    assert len(commands) > 10
    for command in commands:
        ran = readme.run(command, folder)
        assert ran.code == 0, f"{command}\n{ran.output}"
        assert ran.output.strip()
    for snippet in readme.snippets(TEXT):
        done = subprocess.run([sys.executable, "-c", snippet], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{snippet}\n{done.stderr}"


def test_every_command_is_shown_with_output() -> None:
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            assert part.count("\n") > 1, part


def test_every_verb_and_pass_is_there() -> None:
    help_ = subprocess.run([sys.executable, "-m", "onnx_bridge", "--help"], capture_output=True, text=True, check=True)
    verbs = re.findall(r"^│ (\w+) ", help_.stdout.split("Commands")[1], re.MULTILINE)
    assert {"clean", "convert", "check", "run", "inspect", "runtime"} <= set(verbs)
    for verb in verbs:
        assert f"onnx-bridge {verb}" in TEXT, verb
    for name in passes.names():
        assert f"| `{name}` |" in TEXT, name


def test_demo(runtime: Runtime, tmp_path: Path) -> None:
    root = readme.README.parent
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(root)!r}); from fixtures import demo; sys.exit(demo.main())",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("ResNet", "BERT", "holds", "parse", "MIGraphX"):
        assert word in done.stdout
    assert (tmp_path / "demo-output/bert/bert.mxr").exists()
