"""How long the project takes to start: ``python -m benchmarks.start``.

Each is a whole process, in turn with a bare interpreter; medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import onnx

from benchmarks.bounds import Bound, report
from benchmarks.processes import measure

_MOST = {"onnx-bridge --version": 0.1, "onnx-bridge --help": 0.15, "onnx-bridge convert --help": 0.3}
"""Seconds of a whole process."""
_ONE_NODE = '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'


def main() -> int:
    """Measure, and print a line each; exit code 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        source, out = Path(folder, "one.onnx"), Path(folder, "out.onnx")
        onnx.save(onnx.parser.parse_model(_ONE_NODE), source)
        python = sys.executable
        commands = {
            "a bare interpreter": [python, "-c", "pass"],
            **{what: [python, "-m", "onnx_bridge", *what.split()[1:]] for what in _MOST},
            "onnx-bridge clean, one node": [python, "-m", "onnx_bridge", "clean", str(source), "-o", str(out)],
            "import onnx_bridge": [python, "-c", "import onnx_bridge"],
            "import, and clean one node": [python, "-c", f"import onnx_bridge; onnx_bridge.clean({str(source)!r})"],
        }
        taken: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(rounds):
            for what, command in commands.items():
                used = measure(command)
                if used.error is not None:
                    raise SystemExit(f"{what} failed: {used.error}")
                taken[what].append(used.seconds)
    medians = {what: statistics.median(each) for what, each in taken.items()}
    for what, seconds in medians.items():
        print(f"{what}: {seconds:.3f} s")
    bounds = [Bound(what, medians[what], most, "s", "of a whole process") for what, most in _MOST.items()]
    return 1 if report(bounds) else 0


if __name__ == "__main__":
    sys.exit(main())
