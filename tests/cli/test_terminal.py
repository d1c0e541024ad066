"""The terminal: eighty columns, progress, the next command, and the same options on every verb."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from onnx import parser
from rich.cells import cell_len

from onnx_bridge.cli import terminal
from onnx_bridge.cli.main import app
from onnx_bridge.core.progress import QUIET_SECONDS, TimedProgress
from onnx_bridge.migraphx.runtime import Runtime

LONG = "a_name_that_is_longer_than_any_column_of_a_table_of_eighty_columns_should_ever_be_without_breaking"
MODEL = f"""<ir_version: 8, opset_import: ["": 18]> g (float[batch, 3, 8, 8] {LONG}) => (float[batch, 3, 16, 16] y) {{
    {LONG}_2 = Mish ({LONG}) y = Resize <mode = "nearest"> ({LONG}_2, , scales)
}}"""
OPEN = """<ir_version: 8, opset_import: ["": 18]> g (float[batch, sequence, 8] x) => (float[batch, sequence, 8] y) {
    y = Relu (x)
}"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    proto = parser.parse_model(MODEL)
    proto.graph.initializer.append(onnx.helper.make_tensor("scales", onnx.TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0]))
    onnx.save(proto, path)
    return path


def on_a_terminal(arguments: list[object], folder: Path, stream: str = "stdout", code: int = 0) -> str:
    """Return what a command prints on a stream that is a terminal of eighty columns; the other one is none."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    here, there = pty.openpty()
    fcntl.ioctl(here, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "onnx_bridge", *map(str, arguments)],
        cwd=folder,
        env={**environment, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: there},  # type: ignore[call-overload]
    )
    os.close(there)
    found = b""
    with contextlib.suppress(OSError), os.fdopen(here, "rb", buffering=0) as screen:  # an error is its end on Linux
        while data := screen.read(1 << 16):
            found += data
    assert process.wait() == code, found
    return found.decode().replace("\r\n", "\n")


def lines(printed: str) -> list[str]:
    return _ESCAPE.sub("", printed).splitlines()


def too_long(printed: list[str]) -> list[str]:
    """Lines that do not fit, other than what is there to be copied."""
    return [line for line in printed if cell_len(line) > 80 and not line.startswith("next: ")]


def test_each_command_names_the_next_one(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    command, said = ["doctor", str(model), "--dim", "batch=2"], []
    for verb in ("convert", "check"):
        *printed, then = lines(on_a_terminal(command, tmp_path))
        said += printed
        assert then.startswith(f"next: onnx-bridge {verb} ")
        command = shlex.split(then)[2:]
    said += lines(on_a_terminal(command, tmp_path))
    assert "parity holds" in said[-1]
    assert too_long(said) == []


@pytest.mark.parametrize("verb", [["inspect", "MODEL"], ["clean", "MODEL", "--dry-run"], ["passes", "list"]])
def test_eighty_columns(model: Path, tmp_path: Path, verb: list[str]) -> None:
    printed = on_a_terminal([str(model) if each == "MODEL" else each for each in verb], tmp_path)
    assert "\x1b[" in printed, "colours"
    assert too_long(lines(printed)) == []


def test_verdicts_have_colours_and_words(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    command = ["doctor", model, "--dim", "batch=2"]
    assert re.search(r"\x1b\[31m *rejected", on_a_terminal(command, tmp_path))
    plain = subprocess.run(
        [sys.executable, "-m", "onnx_bridge", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert "rejected" in plain.stdout
    assert "\x1b" not in plain.stdout


def test_an_error_breaks_no_word_and_gives_one_advice(model: Path, tmp_path: Path) -> None:
    open_sizes = tmp_path / "open.onnx"
    onnx.save(parser.parse_model(OPEN), open_sizes)
    said = lines(on_a_terminal(["run", open_sizes], tmp_path, "stderr", code=2))
    *message, advice = said[next(n for n, line in enumerate(said) if "onnx-bridge: " in line) :]
    assert too_long(message) == []
    assert advice.startswith("type: onnx-bridge run ")
    assert "onnx-bridge docs" not in " ".join(message)
    assert {"sequence=128", "reference"} <= {*re.split(r"[\s,;()]+", " ".join(message))}


@pytest.mark.parametrize("verb", [[], ["convert"], ["runtime"], ["runtime", "list"]])
def test_help_in_eighty_columns(tmp_path: Path, verb: list[str]) -> None:
    printed = on_a_terminal([*verb, "--help"], tmp_path)
    assert "\x1b[" not in printed, "plain text"
    said = lines(printed)
    assert too_long(said) == []
    assert not any(line.endswith("...") for line in said if "Usage:" not in line), "a summary is cut off"


def test_progress_is_for_terminals(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    command: list[object] = ["doctor", model, "--dim", "batch=2"]
    assert "judging" in on_a_terminal([*command, "--no-cache"], tmp_path, "stderr")
    assert on_a_terminal([*command, "--quiet"], tmp_path, "stderr") == ""
    assert on_a_terminal([*command, "--json"], tmp_path, "stderr") == ""


def test_a_stage_tells_its_time_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    stage, timed = terminal._Ticking("compile"), terminal._Ticking(TimedProgress("compare", 9))
    assert (stage.__rich__(), timed.__rich__()) == ("compile", TimedProgress("compare", 9))
    now += QUIET_SECONDS + 3
    assert (stage.__rich__(), timed.__rich__()) == ("compile, 5 s", TimedProgress("compare", 4))
    now += 60
    assert "longer" in timed.__rich__()


def commands(command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """Every verb, by its path, that has no verbs of its own."""
    if not hasattr(command, "list_commands"):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        yield from commands(inner, inner.make_context(name, [], parent=context, resilient_parsing=True))


def test_every_verb_prints_json() -> None:
    group: Any = typer.main.get_command(app)
    found = dict(commands(group, group.make_context("onnx-bridge", [], resilient_parsing=True)))
    assert len(found) > 20
    assert [path for path, each in found.items() if "--json" not in {o for p in each.params for o in p.opts}] == []


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", "onnx-bridge con", "convert"),
        ("bash", "onnx-bridge convert --prec", "--precision"),
        ("bash", "onnx-bridge passes explain fuse-g", "fuse-gelu"),
        ("zsh", "onnx-bridge passes expl", "explain"),
        ("fish", "onnx-bridge clean --pipeline minimal,fuse-g", "minimal,fuse-gelu"),
    ],
)
def test_completion(shell: str, words: str, expected: str) -> None:
    """The shell's script asks the program in this way."""
    asked = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": words},
        "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    program = Path(sys.executable).with_name("onnx-bridge")
    environment = {**os.environ, **asked, "_ONNX_BRIDGE_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert expected in re.split(r"[\s\"():]+", done.stdout), done.stdout + done.stderr
