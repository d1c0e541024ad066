"""What is deferred is loaded when it is used, and is then what it always was."""

from __future__ import annotations

import subprocess
import sys

START = """
import importlib.util, sys
from onnx_bridge.core.deferred import defer
defer()
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
    "loaded before": "import sympy; defer(); assert sys.modules['sympy'].Integer(3) == 3",
}


def test_loaded_when_used() -> None:
    for use, code in USES.items():
        done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True)
        assert done.returncode == 0, (use, done.stderr)


def test_a_library_leaves_no_trace() -> None:
    code = """
import sys, onnx_bridge
onnx_bridge.clean
assert "onnx_ir" in sys.modules and "sympy" not in sys.modules
import onnx_ir, sympy
assert isinstance(sympy.Integer(3), sympy.core.Integer)
assert str(onnx_ir.SymbolicDim("2 * batch") + 1) == "2*batch + 1"
assert onnx_ir.SymbolicDim(sympy.Symbol("n")).value == "n"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_threads_never_have_a_stand_in() -> None:
    """They may import SymPy at any moment: as long as there are any, onnx-ir is imported as it is."""
    code = """
import sys, threading, onnx_bridge
from onnx_bridge import deferred
deferred.defer = None  # which would fail if it was called
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
try:
    onnx_bridge.clean
finally:
    done.set()
    thread.join()
import onnx_ir, sympy
assert onnx_ir._core.sympy is sympy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_import_that_fails_leaves_no_stand_in() -> None:
    code = """
import sys, onnx_bridge
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "onnx_ir":
            raise ImportError("broken")
sys.meta_path.insert(0, Broken())
try:
    onnx_bridge.clean
except ImportError:
    pass
assert not {"sympy", "onnx_ir._symbolic_shapes"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
