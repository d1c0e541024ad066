"""``onnx-bridge quantize``: options, what goes to which stream, and exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_bridge.cli import main
from onnx_bridge.core.values import Array

CODE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(2, 8)

def bare():
    return nn.Linear(8, 4)
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def samples(tmp_path: Path, data: list[dict[str, Array]]) -> Path:
    np.savez(tmp_path / "data.npz", x=np.stack([each["x"] for each in data]))
    return tmp_path / "data.npz"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("model.onnx", …)``: exit code and both streams, in a folder with the code above."""
    (tmp_path / "nets_to_quantize.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "nets_to_quantize", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnx-bridge", "quantize", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


def test_the_table(run: Run, source: Path, samples: Path) -> None:
    code, out, err = run(
        str(source),
        "-o",
        "q.onnx",
        "--with",
        "ort",
        "--scheme",
        "uint8",
        "--calibration",
        str(samples),
        "--per-channel",
    )
    assert (code, err) == (0, "")
    assert "SQNR" in out
    assert "uint8, weights per channel, by ONNX Runtime" in out
    assert "written to q.onnx" in out
    onnx.checker.check_model("q.onnx")


def test_nodes_to_leave_out(run: Run, source: Path, samples: Path) -> None:
    options = ("-o", "q.onnx", "--with", "ort", "--calibration", str(samples), "--json")
    code, out, _ = run(str(source), *options, "--exclude", "MatMul,Conv")
    found = json.loads(out)
    assert code == 0
    assert len(found["excluded"]) == 4
    assert (found["samples"], found["batches"]) == (16, 8)
    assert {"name", "max_abs", "largest", "sqnr_db"} == found["outputs"][0].keys()


def test_modules_by_either_quantizer(run: Run) -> None:
    for quantizer in ("quark", "ort"):
        code, out, _ = run("nets_to_quantize:net", "-o", "q.onnx", "--with", quantizer, "--json")
        found = json.loads(out)
        assert code == 0
        assert found["outputs"][0]["sqnr_db"] > 25
        assert any("calibrated on the arguments alone" in note for note in found["notes"])


def test_errors_are_one_line_and_usage(run: Run, source: Path) -> None:
    code, out, err = run(str(source), "-o", "q.onnx", "--with", "ort", "--scheme", "bf16")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "ONNX Runtime's quantizer cannot do it: it has no such format" in err
    code, out, _ = run("nets_to_quantize:bare", "-o", "q.onnx", "--json")
    assert code == 2
    assert "without arguments" in json.loads(out)["error"]["what"]
    code, out, _ = run("none.onnx", "-o", "q.onnx", "--with", "ort", "--json")
    assert code == 2
    assert json.loads(out)["error"]["where"] == "none.onnx"
    assert not Path("q.onnx").exists()


def test_quark_prints_and_writes_nothing_else(source: Path, samples: Path, tmp_path: Path) -> None:
    """In a separate process, where Quark and its dependencies are imported for the first time."""
    (folder := tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "onnx_bridge", "quantize", str(source), "-o", str(tmp_path / "q.onnx")]
    done = subprocess.run(
        [*command, "--calibrate", "layer-percentile", "--calibration", str(samples), "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["calibrate"] == "layer-percentile"
    assert not list(folder.iterdir())
    assert done.stderr == ""


def test_a_search_prints_the_command_that_makes_its_model_again(
    run: Run, source: Path, samples: Path, tmp_path: Path
) -> None:
    options = [str(source), "-o", "a.onnx", "--with", "ort", "--calibration", str(samples)]
    searched = [*options, "--data", str(samples), "--min"]
    code, out, _ = run(*searched, "sqnr=38", "--report", "page.html")
    assert code == 0
    assert "<svg" in Path("page.html").read_text()
    first = Path("a.onnx").read_bytes()
    (command,) = (line for line in out.splitlines() if line.startswith("onnx-bridge quantize"))
    Path("a.onnx").unlink()
    assert run(*shlex.split(command)[2:])[0] == 0
    assert Path("a.onnx").read_bytes() == first
    Path("a.onnx").unlink()
    for given in (["sqnr=200"], ["nosuch=1"], ["sqnr"]):
        assert run(*searched, *given)[0] != 0
    assert run(*options, "--min", "sqnr=20")[0] != 0
    assert run(*options, "--report", "page.html")[0] != 0
    assert not Path("a.onnx").exists()
