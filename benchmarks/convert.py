"""The time of `convert` compared with parsing, compiling and saving by hand: ``python -m benchmarks.convert``.

"By hand" is a process that loads MIGraphX's C library and does just these three. Runs alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.models import MODELS, make
from onnx_bridge.migraphx import runtime as runtimes

_BY_HAND = """
import sys
from pathlib import Path
from onnx_bridge.migraphx.c_api import CLibrary
library, source, out = map(Path, sys.argv[1:])
program = CLibrary(library).parse_onnx(source)
program.compile("ref")
program.save(out)
"""


def main() -> int:
    """Measure and print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=["resnet50-torchscript", "bert-base-torchscript"], choices=MODELS
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where the models are kept")
    options = parser.parse_args()
    runtime = runtimes.find("private")
    for name in options.models:
        source = make(name, options.folder)
        by_hand, ours = [], []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                arguments = ["-c", _BY_HAND, str(runtime.library), str(source), f"{folder}/hand.mxr"]
                by_hand.append(_seconds(runtime.command(Path(sys.executable), arguments)))
                verb = ["-m", "onnx_bridge", "convert", str(source), "-o", f"{folder}/out", "--target", "ref"]
                ours.append(_seconds([sys.executable, *verb]))
        hand, convert = statistics.median(by_hand), statistics.median(ours)
        print(f"{name}: by hand {hand:.2f} s, convert {convert:.2f} s: {convert / hand:.2f} ×, {convert - hand:+.2f} s")
    return 0


def _seconds(command: list[str]) -> float:
    os.sync()  # or one run would wait for the disk to take what another wrote
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
