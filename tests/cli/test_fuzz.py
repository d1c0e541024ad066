"""A part of the suite `fuzz`: a call with hostile input of any kind has an answer, or one line that refuses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onnx_bridge.migraphx.runtime import Runtime

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_part_of_it(runtime: Runtime) -> None:
    command = [sys.executable, "-m", "fixtures.suites", "fuzz", "--calls", "54", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    *_, last = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert last.startswith("fuzz: ")
    assert last.endswith("untyped 0, crashed 0, hung 0, over memory 0, of 54")
