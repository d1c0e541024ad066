"""A deferred module behaves as the module itself once it is used; what is loaded is not visited for garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import importlib.util, sys
from passes.isolation.deferred import defer_sympy
defer_sympy()
import onnx_ir
assert importlib.util.find_spec("sympy") is not None
assert "sympy.core" not in sys.modules
assert str(onnx_ir.SymbolicDim("batch")) == "batch"
assert "sympy.core" not in sys.modules
"""

USES = {
    "arithmetic of onnx-ir": "assert str((onnx_ir.SymbolicDim('2 * batch') + 1)) == '2*batch + 1'",
    "a submodule": "import sympy.core; import sympy; assert sympy.Integer(3) + 4 == 7",
    "a name": "from sympy import Symbol; assert str(Symbol('x') * 2) == '2*x'",
    "torch": "import torch; assert torch.ones(2).sum() == 2",
    "loaded before": "import sympy; defer_sympy(); assert sys.modules['sympy'].Integer(3) == 3",
}


@pytest.mark.slow
def test_loaded_when_used() -> None:
    for use, code in USES.items():
        done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True)
        assert done.returncode == 0, (use, done.stderr)


@pytest.mark.slow
def test_a_users_process_gets_no_stand_in() -> None:
    code = """
import sys, onnx_bridge
onnx_bridge.clean
assert "onnx_ir" in sys.modules
import sympy
assert sys.modules["onnx_ir._core"].sympy is sympy and "sympy.core" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_nothing_imported_is_visited_for_garbage(tmp_path: Path) -> None:
    code = """
import gc, sys
from passes.isolation import deferred
sys.path.insert(0, sys.argv[1])
begun = []
gc.callbacks.append(lambda phase, _: begun.append(phase))
imported = deferred.load("large")
assert not begun and imported.parts is sys.modules["large"].parts
assert gc.isenabled()
gc.collect()
assert begun and not any(each is imported.parts for each in gc.get_objects())
frozen = gc.get_freeze_count()
assert deferred.load("large") is imported and gc.get_freeze_count() == frozen
try:
    deferred.load("broken")
except ImportError:
    assert gc.isenabled()
else:
    raise AssertionError
"""
    (tmp_path / "large.py").write_text("parts = [[] for _ in range(100_000)]")
    (tmp_path / "broken.py").write_text("import missing_everywhere")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
