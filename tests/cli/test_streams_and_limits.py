"""Streams that cannot be written, numbers that are none, and files that lead to themselves: one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnx_bridge.batch.jobs import gather
from onnx_bridge.core.errors import InputError
from passes.core.isolation.limits import Limits

PROGRAM = Path(sys.executable).with_name("onnx-bridge")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command, PROGRAM, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ('"$0" inspect "$1" >&-', "standard output is closed"),
        ('"$0" inspect "$1" >/dev/full', "No space left"),
        ('"$0" inspect "$1" --json >/dev/full', "No space left"),
        ('"$0" --help >/dev/full', "No space left"),
    ],
)
def test_standard_output(model: Path, command: str, says: str) -> None:
    done = shell(command, model)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_standard_error_is_not_needed(model: Path) -> None:
    done = shell('"$0" inspect "$1" 2>&-', model)
    assert done.returncode == 0
    assert "Relu" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--timeout", "inf"],
        ["--timeout", "nan"],
        ["--memory", "inf"],
        ["--dim", "n=99999999999999999999"],
        ["--dim", f"n={'9' * 5000}"],
        ["--dim", "n=²"],
    ],
    ids=lambda options: " ".join(options)[:20],
)
def test_numbers(model: Path, tmp_path: Path, options: list[str]) -> None:
    done = shell('"$0" "$@"', "convert", model, "-o", tmp_path / "out", *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert options[0] in done.stderr


@pytest.mark.parametrize(("timeout", "memory"), [(float("inf"), None), (float("nan"), None), (-1, None), (None, 0)])
def test_limits(timeout: float | None, memory: float | None) -> None:
    with pytest.raises(InputError, match="must be a number"):
        Limits.of(timeout, memory)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("self.yaml", "jobs: [{model: self.yaml}]"),
        ("self.txt", "self.txt"),
        ("one.txt", "two.txt"),
        ("deep.yaml", f"jobs: {'[' * 3000}{']' * 3000}"),
        ("deep.toml", f"a = {'{a = ' * 3000}1{'}' * 3000}"),
        ("nul.toml", '[[jobs]]\nmodel = "a\\u0000.onnx"'),
        ("name.toml", '[[jobs]]\nmodel = "m.onnx"\nname = "a\\u0000"'),
        ("1.txt", "2.txt"),
    ],
)
def test_job_files(model: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "two.txt").write_text("one.txt")
    for number in range(2, 12):
        (tmp_path / f"{number}.txt").write_text(f"{number + 1}.txt" if number < 11 else "m.onnx")
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        gather([tmp_path / name], tmp_path / "out")
    assert "\n" not in str(caught.value)
