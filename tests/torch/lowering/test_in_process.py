"""Modules in this process by the official Python module, on ``ref``: all but the stream and memory of a GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onnx_bridge.migraphx.runtime import Runtime

pytestmark = pytest.mark.torch
PRELUDE = """
import sys, torch
from pathlib import Path
from torch import nn
from torch.testing import assert_close
from onnx_bridge import lower
from onnx_bridge.core.errors import InputError
runtime, folder = sys.argv[1], Path(sys.argv[2])
def make(module, *sample, **options):
    return lower(module, sample, target="ref", runtime=runtime, cache=folder, in_process=True, **options)
"""


@pytest.fixture
def module(second_runtime: Runtime) -> Runtime:
    """The official module."""
    if second_runtime.kind != "module":
        pytest.skip(f"{second_runtime.path} is not the official module")
    return second_runtime


def run(module: Runtime, folder: Path, code: str) -> None:
    """Run code in a process of its own: MIGraphX may end it, and is not to be loaded into that of the tests."""
    script = folder / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(code))
    command = [sys.executable, str(script), str(module.path), str(folder / "cache")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_several_inputs_and_outputs(module: Runtime, tmp_path: Path) -> None:
    """Of several dtypes, a scalar, transposed, and from memory that is not contiguous."""
    code = """
    class Net(nn.Module):
        def forward(self, x, index, flag):
            y = torch.where(flag, x.relu(), x)
            return y.T, y.sum(), y[:, index], index + 1
    net = Net().eval()
    sample = (torch.randn(3, 4), torch.tensor([2, 0]), torch.rand(3, 4) > 0.5)
    lowered = make(net, *sample)
    for _ in range(3):
        given = (torch.randn(4, 3).T, torch.tensor([1, 3]), torch.rand(3, 4) > 0.5)
        kept = [each.clone() for each in given]
        found, expected = lowered(*given), net(*given)
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert_close(found, expected)
        assert_close(list(given), kept, rtol=0, atol=0)
    assert "migraphx" in sys.modules
    """
    run(module, tmp_path, code)


def test_buckets_and_two_modules_at_a_time(module: Runtime, tmp_path: Path) -> None:
    code = """
    first = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    second = nn.Conv2d(2, 3, 3, padding=1).eval()
    one = make(first, torch.randn(2, 4), dynamic={"input": {0: "n"}}, buckets={"n": [2, 4]})
    two = make(second, torch.randn(1, 2, 5, 5))
    for n in (1, 2, 3, 4):
        x, image = torch.randn(n, 4), torch.randn(1, 2, 5, 5)
        with torch.no_grad():
            assert_close(one(x), first(x))
            assert_close(two(image), second(image))
    """
    run(module, tmp_path, code)


def test_what_cannot_run_here_is_said(module: Runtime, tmp_path: Path) -> None:
    """A part on ONNX Runtime, and 16-bit floats that the module's buffers cannot hold."""
    code = """
    class Counts(nn.Module):
        def forward(self, x):
            return (x > 0).nonzero()
    class Sum(nn.Module):
        def forward(self, x):
            return x + x
    for module, sample, said in (
        (Counts().eval(), torch.randn(2, 4), "parts of it run apart, or on ONNX Runtime"),
        (Sum().eval(), torch.randn(2, 4).bfloat16(), "does not accept bf16 by address"),
    ):
        try:
            make(module, sample)(sample)
        except InputError as error:
            assert said in str(error), str(error)
        else:
            raise AssertionError(said)
    """
    run(module, tmp_path, code)
