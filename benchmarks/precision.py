"""The error of each precision: the zoo's CNN, BERT, ViT and Llama blocks, converted and compared.

    python -m benchmarks.precision [NAME…] [--precision fp16,int8]

Weights are as after training (`zoo.registry`), inputs and calibration data are seeded. Printed is, for each
network and precision, whether MIGraphX agrees with the original in float32 on ONNX Runtime within the tolerance of the
precision, the error of the worst output (root of the mean square, as a share of that of the values), its SQNR, and,
if it does not agree, once more with the nodes in float32 that must stay there. ``quantized`` counts what MIGraphX
really quantizes for int8 and fp8: pairs of operands, beside the number of products. With int8 they are the same; fp8 is
in every operator.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_bridge
from benchmarks.bounds import Bound, report
from fixtures.suites.zoo import run
from fixtures.suites.zoo.registry import Architecture
from onnx_bridge.benchmark.operators import per_operator
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.requests.conversion import PRECISIONS
from onnx_bridge.samples.inputs import generate

NETWORKS = ("resnet", "bert", "vit", "llama")
SAMPLES = 2
_PRODUCTS = ("dot", "convolution")


@dataclass(frozen=True)
class Line:
    """A network in one precision.

    Attributes:
        network: its name.
        precision: what it computes in.
        passed: whether it agrees; False also if it does not convert.
        error: the relative error of the worst output; None if nothing was compared.
        sqnr_db: the ratio of signal to noise of that output, in dB.
        quantized: pairs of quantized operands, and products; empty where MIGraphX quantizes nothing.
        keep_fp32: the nodes that must stay in float32, or why none were found.
    """

    network: str
    precision: str
    passed: bool
    error: float | None = None
    sqnr_db: float | None = None
    quantized: str = ""
    keep_fp32: str = ""

    def __str__(self) -> str:
        numbers = f"{self.error:10.2e} {self.sqnr_db:8.1f}" if self.error is not None else f"{'':10} {'':8}"
        verdict = "agrees" if self.passed else "differs"
        return (
            f"{self.network:10} {self.precision:9} {verdict:8} {numbers}  {self.quantized:10} {self.keep_fp32}".rstrip()
        )


def measure(network: Architecture, precision: str, folder: Path) -> list[Line]:
    """Convert a network and compare it with the original; if it differs, again with nodes kept in float32."""
    path = folder / f"{network.name}.onnx"
    if not path.exists():
        module, arguments = network.make()
        onnx_bridge.export(module, (), arguments, out=path)
    first = _measured(path, precision, (), folder)
    if first.passed or precision == "fp32":
        return [first]
    try:
        kept = onnx_bridge.mixed_precision(path, precision=precision, target="ref", samples=SAMPLES)
    except BridgeError as error:
        return [replace(first, keep_fp32=str(error))]
    return [first, _measured(path, precision, kept.nodes, folder)]


def _measured(path: Path, precision: str, keep_fp32: Sequence[str], folder: Path) -> Line:
    try:
        bundle = onnx_bridge.convert(path, folder / "bundle", target="ref", precision=precision, keep_fp32=keep_fp32)
    except BridgeError as error:
        return Line(path.stem, precision, False, keep_fp32=str(error))
    report = onnx_bridge.check(bundle, reference=path, samples=SAMPLES)
    outputs = [output for each in report.legs[-1].comparisons for output in each.outputs]
    worst = min((output.sqnr_db for output in outputs if output.sqnr_db is not None), default=None)
    error_ = None if worst is None else 10 ** (-worst / 20)
    return Line(path.stem, precision, report.passed, error_, worst, _quantized(bundle, precision), ", ".join(keep_fp32))


def _quantized(bundle: Bundle, precision: str) -> str:
    """Return how many pairs of operands are quantized, on ``ref`` behind a quantizelinear and a dequantizelinear."""
    if precision not in BY_CALIBRATION:
        return ""
    (sample,) = generate(bundle.specs)
    counts = {row.operator: row.count for row in per_operator(bundle, sample)}
    pairs = min(counts.get("quantizelinear", 0), counts.get("dequantizelinear", 0))
    return f"{pairs // 2} / {sum(counts.get(name, 0) for name in _PRODUCTS)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 if a network differs with the nodes in float32 that must stay there, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NETWORKS, help="networks of the zoo")
    parser.add_argument("--precision", default=",".join(PRECISIONS), help="with commas")
    chosen = parser.parse_args(arguments)
    networks = run.load()
    print(f"{'network':10} {'precision':9} {'':8} {'error':>10} {'SQNR dB':>8}  {'quantized':10} keep in float32")
    differing = 0
    for name in chosen.names:
        with tempfile.TemporaryDirectory() as folder:
            for precision in chosen.precision.split(","):
                for line in measure(networks[name], precision, Path(folder)):
                    print(line, flush=True)
                differing += not line.passed
    count = len(chosen.names) * len(chosen.precision.split(","))
    return report([Bound("networks that differ in a precision", differing, 0, "networks", f"of {count}")])


if __name__ == "__main__":
    sys.exit(main())
