"""Streams that cannot be written, numbers that are none, and files that lead to themselves: one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnx_bridge.batch.jobs import gather
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from passes.isolation.limits import Limits

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
    assert options[0].removeprefix("--") in done.stderr


@pytest.mark.parametrize("verb", ["clean", "doctor", "quantize"])
def test_a_folder_that_does_not_exist_is_an_error_before_the_work(tmp_path: Path, verb: str) -> None:
    """Not even the model is read."""
    done = shell('"$0" "$@"', verb, tmp_path / "gone.onnx", "-o", tmp_path / "gone" / "out.onnx")
    assert done.returncode == 2
    assert done.stderr.count("folder does not exist") == 1


@pytest.mark.parametrize("command", [["check"], ["convert", "-o", "out"], ["inspect"], ["doctor"]])
def test_names_that_no_file_can_have(tmp_path: Path, command: list[str]) -> None:
    found = subprocess.run([PROGRAM, *command, "a" * 300], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 2
    assert "too long" in found.stderr and "defect" not in found.stderr


def test_memory_limits_below_those_of_the_system(runtime: Runtime, model: Path) -> None:
    done = shell('ulimit -d 4000000; "$0" "$@"', "check", model, "--target", "ref", "--memory", "8")
    assert done.returncode == 0, done.stderr


def test_a_program_that_cannot_be_written_names_the_cause(runtime: Runtime, tmp_path: Path) -> None:
    """MIGraphX says no more than that it could not write."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2, 512] x) => (float[2, 512] y) { y = MatMul(x, w) }'
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((512, 512), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    limited = 'trap "" XFSZ; ulimit -f 1000; "$0" "$@"'
    done = shell(
        limited, "convert", tmp_path / "m.onnx", "-o", tmp_path / "out", "--target", "ref", "--pipeline", "none"
    )
    assert done.returncode == 2
    assert "File too large" in done.stderr or "larger than is allowed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
        ("bool.yaml", "jobs: !!bool x"),
        ("int.yaml", "jobs: !!int ''"),
        ("time.yaml", "jobs: !!timestamp x"),
        ("home.toml", '[[jobs]]\nmodel = "~nobody-of-this-name/m.onnx"'),
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
