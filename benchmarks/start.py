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

_HELP = 0.15
_ONE_NODE = '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'


def main() -> int:
    """Measure, and print a line each; exit code 1 if the bound of ``--help`` is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        source, out = Path(folder, "one.onnx"), Path(folder, "out.onnx")
        onnx.save(onnx.parser.parse_model(_ONE_NODE), source)
        python = sys.executable
        commands = {
            "a bare interpreter": [python, "-c", "pass"],
            "onnx-bridge --help": [python, "-m", "onnx_bridge", "--help"],
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
    bound = Bound("onnx-bridge --help", medians["onnx-bridge --help"], _HELP, "s", "of a whole process")
    return 1 if report([bound]) else 0


if __name__ == "__main__":
    sys.exit(main())
