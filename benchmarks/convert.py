"""The time of `convert` compared with doing it by hand: ``python -m benchmarks.convert``.

"By hand" is a process that optimizes the model with ONNX Runtime (basic), and then parses, compiles and saves it with
MIGraphX's C library. Ours is the command ``onnx-bridge convert``, once without cached verdicts and once with them; its
proof at the end, which running by hand does not have, is told apart. Runs alternate; medians are printed, and the peak
of anonymous memory of each process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bounds import Bound, report
from benchmarks.models import MODELS, make
from benchmarks.processes import Usage, measure
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.runtime import Runtime

_COLD = {"resnet50-torchscript": 1.3, "bert-base-torchscript": 1.2, "swin-tiny-torchscript": 2.0}
"""How many times as long as by hand a conversion may take without cached verdicts."""
_WARM, _BEYOND = 1.1, 0.3

_BY_HAND = """
import sys
from pathlib import Path
import onnxruntime as ort
library, source, out = map(Path, sys.argv[1:])
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = str(out.with_suffix(".onnx"))
options.log_severity_level = 4
ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
from onnx_bridge.migraphx.c_api import CLibrary
program = CLibrary(library).parse_onnx(out.with_suffix(".onnx"))
program.compile("ref")
program.save(out)
"""


class _Runs:
    """The runs of one way."""

    def __init__(self) -> None:
        self.usages: list[Usage] = []
        self.proofs: list[float] = []

    def add(self, used: Usage, proof: float = 0.0) -> None:
        if used.error is not None:
            raise SystemExit(f"a run failed: {used.error}")
        self.usages.append(used)
        self.proofs.append(proof)

    @property
    def proof(self) -> float:
        return statistics.median(self.proofs)

    @property
    def seconds(self) -> float:
        """Without the proof."""
        return statistics.median(used.seconds - proof for used, proof in zip(self.usages, self.proofs, strict=True))

    @property
    def memory(self) -> str:
        """The largest peak of each process."""
        roles = dict.fromkeys(role for used in self.usages for role in used.peaks)
        peaks = {role: max(used.peaks.get(role, 0.0) for used in self.usages) for role in roles}
        return ", ".join(f"{role} {peak:.0f} MB" for role, peak in peaks.items())


def main() -> int:
    """Measure, and print a table and the bounds of each model; exit code 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(_COLD), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where the models are kept")
    options = parser.parse_args()
    runtime = runtimes.find("private")
    missed = 0
    for name in options.models:
        source = make(name, options.folder)
        hand, cold, warm = _Runs(), _Runs(), _Runs()
        _convert(source)  # so that verdicts are cached
        for _ in range(options.rounds):
            hand.add(_by_hand(source, runtime))
            cold.add(*_convert(source, "--no-cache"))
            warm.add(*_convert(source))
        print(f"\n{name}")
        print(f"  by hand {hand.seconds:.2f} s; {hand.memory}")
        for label, runs in (("without cached verdicts", cold), ("with cached verdicts", warm)):
            ratio = f"{runs.seconds / hand.seconds:.2f} × by hand"
            print(f"  {label} {runs.seconds:.2f} s ({ratio}), and its proof {runs.proof:.2f} s; {runs.memory}")
        missed += report(_bounds(name, hand.seconds, cold.seconds, warm.seconds))
    return 1 if missed else 0


def _bounds(name: str, hand: float, cold: float, warm: float) -> Iterator[Bound]:
    if name in _COLD:
        yield Bound(f"cold {name}", cold, _COLD[name] * hand, "s", f"{_COLD[name]:g} × by hand")
    yield Bound(f"warm {name}", warm, _WARM * hand + _BEYOND, "s", f"{_WARM} × by hand + {_BEYOND} s")


def _by_hand(source: Path, runtime: Runtime) -> Usage:
    with tempfile.TemporaryDirectory(dir=source.parent.parent) as folder:
        arguments = ["-c", _BY_HAND, str(runtime.library), str(source), f"{folder}/hand.mxr"]
        return measure(runtime.command(Path(sys.executable), arguments))


def _convert(source: Path, *options: str) -> tuple[Usage, float]:
    """Return what one conversion takes, and the seconds of its proof."""
    with tempfile.TemporaryDirectory(dir=source.parent.parent) as folder:
        verb: Sequence[str] = ["-m", "onnx_bridge", "convert", str(source), "-o", f"{folder}/out", "--target", "ref"]
        used = measure([sys.executable, *verb, *options])
        if used.error is not None:
            return used, 0.0
        proof = json.loads(Path(folder, "out", "manifest.json").read_text())["proof"]["seconds"]
        return used, float(proof or 0.0)


if __name__ == "__main__":
    sys.exit(main())
