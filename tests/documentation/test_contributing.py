"""CONTRIBUTING.md to the letter: its pass, its commands, and its entry point in a package of a user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from docs.generator import blocks, execute

TEXT = (blocks.ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = [command for block in blocks.blocks(TEXT) for command, _ in block.commands]
MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Relu(b) }'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = next(block.text for block in blocks.blocks(TEXT) if block.language == "python")
    (tmp_path / "my_pass.py").write_text(source)
    onnx.save(parser.parse_model(MODEL), tmp_path / "double.onnx")
    return tmp_path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_commands(folder: Path) -> None:
    explain, clean = (execute.run(command, folder) for command in COMMANDS)
    assert explain.code == 0, explain.output
    assert "would rewrite Neg_1, Neg_0" in explain.output
    assert clean.code == 0, clean.output
    assert operators(folder / "clean.onnx") == ["Relu"]


@pytest.mark.parametrize(
    "graph",
    [
        "(float[2] x) => (float[2] y) { a = local.Neg(x) y = Neg(a) }",
        "(float[2] x) => (float[2] y) { a = Neg(x) y = local.Neg(a) }",
    ],
)
def test_an_operator_of_the_same_name_in_another_domain(folder: Path, graph: str) -> None:
    """The function computes Exp: without either node, the numbers would be others."""
    imports = 'opset_import: ["": 17, "local": 1]'
    function = '<domain: "local", opset_import: ["": 17]> Neg (p) => (q) { q = Exp(p) }'
    onnx.save(parser.parse_model(f"<ir_version: 8, {imports}> g {graph} {function}"), folder / "double.onnx")
    command = next(each for each in COMMANDS if " clean " in each)
    done = execute.run(command.replace("default,", ""), folder)
    assert done.code == 0, done.output
    assert operators(folder / "clean.onnx") == [node.op_type for node in onnx.load(folder / "double.onnx").graph.node]


def test_the_entry_point(folder: Path) -> None:
    """As pip leaves an installed package: the modules, and the metadata beside them."""
    table = re.search(r'^\[project\.entry-points\."onnx_bridge\.passes"\]\n(.+)\n', TEXT, re.MULTILINE)
    assert table is not None
    name, _, value = table[1].partition(" = ")
    site = folder / "site"
    (site / "my_package").mkdir(parents=True)
    (site / "my_package/__init__.py").touch()
    source = (folder / "my_pass.py").read_text().replace("@register\n", "").replace("from passes import register\n", "")
    (site / "my_package/my_pass.py").write_text(source)
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[onnx_bridge.passes]\n{name} = {json.loads(value)}\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "onnx_bridge", "clean", "double.onnx", "-o", "out.onnx", "--pipeline", name]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert operators(folder / "out.onnx") == ["Relu"]
    listed = subprocess.run(
        [sys.executable, "-m", "onnx_bridge", "passes", "list", "--json"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert name in {each["name"] for each in json.loads(listed.stdout)["passes"]}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, ["no such file"]),
        ("x = 1", ["registers no pass"]),
        ("import nothing_of_that_name", ["ModuleNotFoundError", "nothing_of_that_name"]),
        ("def broken(:", ["SyntaxError"]),
    ],
)
def test_a_file_that_does_not_do(tmp_path: Path, source: str | None, words: list[str]) -> None:
    if source is not None:
        (tmp_path / "my_pass.py").write_text(source)
    done = execute.run("onnx-bridge --passes my_pass.py passes list", tmp_path)
    assert done.code == 2
    assert len(done.output.strip().splitlines()) == 1
    for word in ("my_pass.py", *words):
        assert word in done.output
