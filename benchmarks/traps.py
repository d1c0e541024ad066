"""The traps of `fixtures.models.traps` through every tool: ``python -m benchmarks.traps``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.bounds import Bound, report
from benchmarks.tools import OURS, TOOLS, program
from fixtures.models.traps import TRAPS, Trap
from onnx_bridge.core.values import flat
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs
from passes.core.errors import BridgeError


def verdict(tool: str, trap: Trap, folder: Path) -> str:
    """The result of a tool on a trap, in a word or two."""
    before, after = folder / "before.onnx", folder / f"{tool}.onnx"
    onnx.save(trap.model, before)
    code = program(tool, str(before), str(after), large=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    if done.returncode < 0:
        return "crash"
    if done.returncode or not after.exists():
        return "error"
    try:
        cleaned = onnx.load(after)
        onnx.checker.check_model(cleaned, full_check=True)
        if not trap.holds(cleaned):
            return "lost"
        if trap.deterministic:
            (sample,) = inputs.generate(models.load(before))
            expected, actual = Reference(before).run(sample), flat(Reference(after).run(sample))
            if any(not np.array_equal(actual[name], array) for name, array in flat(expected).items()):
                return "wrong"
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, BridgeError):
        return "invalid"
    return "ok"


def main() -> int:
    """Print one row for each trap; exit code 1 if ours falls into one."""
    caught = 0
    tools = [tool for tool in TOOLS if tool != "cp"]
    print(f"{'':18}" + "".join(f"{tool:>15}" for tool in tools))
    with tempfile.TemporaryDirectory() as name:
        for trap, case in TRAPS.items():
            verdicts = [verdict(tool, case, Path(name)) for tool in tools]
            caught += verdicts[tools.index(OURS)] != "ok"
            print(f"{trap:18}" + "".join(f"{verdict:>15}" for verdict in verdicts), flush=True)
    return report([Bound("traps that ours falls into", caught, 0, "traps", f"of {len(TRAPS)}")])


if __name__ == "__main__":
    sys.exit(main())
