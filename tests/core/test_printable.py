"""Names of others on the terminal: control characters, ends of lines and markup are shown, and not obeyed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import onnx
import pytest
from onnx import parser
from rich.console import Group
from rich.table import Table
from rich.text import Text

import onnx_bridge
from onnx_bridge.cli import terminal
from onnx_bridge.core.errors import InputError
from onnx_bridge.views.terminal.tables import console
from passes.core.text import printable

EVIL = "a\x1b[31m\nb[/]\u202e"


def test_printable() -> None:
    assert printable(EVIL) == r"a\x1b[31m\nb[/]\u202e"
    assert printable("größe → [1, 2]") == "größe → [1, 2]"


def test_errors_are_one_line_and_their_fields_exact() -> None:
    error = InputError(f"no input {EVIL}", where=EVIL, hint=EVIL)
    assert printable(str(error)) == str(error)
    assert EVIL in error.what


def test_everything_that_is_printed() -> None:
    table = Table("name")
    table.add_row(EVIL)
    table.add_row(Text(EVIL, style="red"))
    out = io.StringIO()
    console(file=out, width=200).print(Group(table, EVIL, Text(EVIL), f"[red]{EVIL}[/]"))
    text = out.getvalue()
    assert text.count(printable(EVIL)) == 5
    assert f"[red]{printable(EVIL)}[/]" in text
    assert not set(text) & {"\x1b", "\u202e"}


def test_names_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    model.graph.input[0].name = model.graph.node[0].input[0] = EVIL
    model.graph.node[0].name = EVIL
    onnx.save(model, tmp_path / "m.onnx")
    found = onnx_bridge.inspect(tmp_path / "m.onnx")
    terminal.show(found, False)
    shown = capsys.readouterr().out
    assert printable(EVIL) in shown
    assert not set(shown) & {"\x1b", "\u202e"}
    terminal.show(found, True)
    assert json.loads(capsys.readouterr().out)["inputs"][0]["name"] == EVIL
