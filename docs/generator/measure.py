"""The results that two pictures are drawn from: the error of each node of a BERT, and the time of each stage.

``python -m docs.generator.measure`` converts and checks, and writes ``docs/data/example.json``; ``make docs`` draws it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnx_bridge
from docs.generator.coverage import DATA
from docs.generator.folder import export, prepare

EXAMPLE = DATA.with_name("example.json")
_PRECISIONS = ("fp32", "fp16", "bf16")
_TIMED = {"bert": {"dims": {"batch": 2}}, "resnet": {"dims": {"batch": 1}}, "detector": {}}


def _errors(folder: Path, precision: str) -> list[float]:
    """Return the accumulated error of each node that has a float as its result, in order."""
    out = folder / precision
    bundle = onnx_bridge.convert(folder / "bert.onnx", out, dims={"batch": 2}, precision=precision, target="ref")
    report: Any = onnx_bridge.check(bundle, layers=True)
    errors = (row.accumulated for row in report.layers.rows if row.accumulated is not None)
    return [float(f"{error.max_abs:.3g}") for error in errors if error.max_abs and "float" in error.dtype]


def _seconds(folder: Path, name: str, options: Any) -> dict[str, float]:
    """Return the seconds of each stage of a conversion that finds the verdicts of an earlier one."""
    for number in range(2):
        bundle = onnx_bridge.convert(folder / f"{name}.onnx", folder / f"{name}{number}", target="ref", **options)
    return {stage: round(seconds, 4) for stage, seconds in bundle.manifest.timings.items()}


def main() -> None:
    """Convert, check, and write the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, export)
        errors = {precision: _errors(folder, precision) for precision in _PRECISIONS}
        seconds = {model: _seconds(folder, model, options) for model, options in _TIMED.items()}
    EXAMPLE.write_text(json.dumps({"errors": errors, "seconds": seconds}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
