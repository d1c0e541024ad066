"""How far cleaning changes the numbers of the benchmark models: ``python -m benchmarks.equality``.

The reference is the original model on ONNX Runtime with all optimizations off, on a seeded sample.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnx_bridge
from benchmarks.bounds import Bound, report
from benchmarks.models import MODELS, make
from fixtures.suites.quantized.judge import distance
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import generate
from passes.rewriting.base import Exactness

_MOST = 1e-5
"""Of the output's scale."""


def main() -> int:
    """Print a line for each model; exit code 1 if one exceeds its tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[name for name in MODELS if "3gb" not in name], choices=MODELS)
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where the models are kept")
    options = parser.parse_args()
    missed = 0
    for name in options.models:
        source = make(name, options.folder)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            out = Path(folder) / source.name
            steps = onnx_bridge.clean(source, out).steps
            (sample,) = generate(models.load(source), samples=1)
            before, after = Reference(source).run(sample), Reference(out).run(sample)
        error = distance([after], [before])
        exact = all(step.exactness is Exactness.BITWISE for step in steps if step.result.rewrites)
        kind = "every pass that changed it is BITWISE" if exact else "some passes round otherwise"
        missed += report([Bound(f"error of {name}", error, 0 if exact else _MOST, "of the output's scale", kind)])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
