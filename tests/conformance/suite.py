"""The ONNX standard's own backend tests, with their data, of one pinned version of the ONNX package.

The package of this version still has the data of all node tests in it; later ones generate them, with other numbers.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

VERSION = "1.22.0"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
ROOT = Path(__file__).parents[2] / "build" / f"onnx-{VERSION}"

RTOL, ATOL = 1e-3, 1e-7
"""What the suite's own runner allows."""
NARROW = {"float16": (2e-3, 1e-3), "bfloat16": (2e-2, 1e-2)}
"""Two roundings of these types are already more than what the suite allows: 2⁻¹⁰ and 2⁻⁷ of the value each, and as
much of the largest term where a sum cancels. The suite's expectations are computed in other orders, or in float32."""
DRAWING = {"Bernoulli", "RandomUniformLike"}
"""What the suite's random tests draw with, besides Dropout in training mode."""


@dataclass(frozen=True)
class Case:
    """One test of the suite: a model and samples with what is expected of them."""

    name: str
    kind: str
    folder: Path

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.folder / "model.onnx"

    def samples(self) -> list[tuple[dict[str, Any], list[Any]]]:
        """Inputs by name and the expected outputs in order: arrays, lists for sequences, None for empty optionals."""
        model = onnx.load(self.model)
        defaults = {each.name for each in model.graph.initializer}
        wanted = [each for each in model.graph.input if each.name not in defaults]
        found = []
        for folder in sorted(self.folder.glob("test_data_set_*")):
            inputs = {each.name: _read(folder / f"input_{i}.pb", each.type) for i, each in enumerate(wanted)}
            outputs = [_read(folder / f"output_{i}.pb", each.type) for i, each in enumerate(model.graph.output)]
            found.append((inputs, outputs))
        return found

    def difference(self, inputs: Mapping[str, Any], actual: Sequence[Any], expected: Sequence[Any]) -> str | None:
        """How outputs differ from what is expected; of random ones, from all that could be drawn.

        The suite expects what numpy's generator drew once, which no runtime can repeat: ONNX leaves open what is drawn.
        So of these few tests dtypes, shapes, and the numbers that are possible are compared. That each run draws anew,
        and one with its probability, no test of the suite says.
        """
        graph = onnx.load(self.model).graph
        for node in graph.node:
            if node.op_type in DRAWING:
                return _undrawn(actual, expected, 0, 1)
            if node.op_type == "Dropout" and len(node.input) > 2 and inputs[node.input[2]]:
                ratio = inputs[node.input[1]] if node.input[1] else 0.5
                if ratio:
                    return _undrawn(actual, expected, 0, inputs[node.input[0]] / (1 - ratio))
        return difference(list(actual), list(expected))


def cases() -> list[Case]:
    """All of them, in a stable order; fetches the package where it is not there yet."""
    return [
        Case(folder.name, kind, folder)
        for kind in KINDS
        for folder in sorted((_fetched() / kind).iterdir())
        if (folder / "model.onnx").exists()
    ]


def difference(actual: Any, expected: Any) -> str | None:
    """How an output differs from what is expected; None where it does not."""
    if isinstance(expected, list):
        if not isinstance(actual, Sequence) or len(actual) != len(expected):
            return f"{len(expected)} elements are expected"
        return next(filter(None, map(difference, actual, expected)), None)
    if expected is None or actual is None:
        return None if expected is actual else "one of the two is empty"
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.dtype.kind in "OSU":
        return (
            None
            if actual.shape == expected.shape and actual.astype(str).tolist() == expected.astype(str).tolist()
            else "other strings"
        )
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "biu":
        wrong = int((actual != expected).sum())
        return f"{wrong} of {expected.size} elements differ" if wrong else None
    rtol, atol = NARROW.get(expected.dtype.name, (RTOL, ATOL))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    actual, expected = actual.astype(wide), expected.astype(wide)
    if np.allclose(actual, expected, rtol, atol, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        return f"largest difference {np.nanmax(np.abs(actual - expected)):.3g}"


def _undrawn(actual: Sequence[Any], expected: Sequence[Any], low: Any, high: Any) -> str | None:
    """What of the outputs cannot have been drawn.

    Args:
        actual: numbers that are either of two, and perhaps a mask that says where they are the higher one.
        expected: their dtypes and shapes.
        low: the one of the two, everywhere or by place.
        high: the other.
    """
    kinds = [[(np.asarray(each).dtype, np.shape(each)) for each in outputs] for outputs in (actual, expected)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} instead of {kinds[1]}"
    drawn, *masks = map(np.asarray, actual)
    is_high, is_low = np.isclose(drawn, high, RTOL, ATOL), np.isclose(drawn, low, RTOL, ATOL)
    if not np.all(is_low | is_high):
        return "numbers that cannot be drawn"
    return None if all(np.all(np.where(mask, is_high, is_low)) for mask in masks) else "another mask"


def _fetched() -> Path:
    data = ROOT / "onnx/backend/test/data"
    if not data.exists():
        ROOT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOT) as folder:  # several processes of a run of tests may fetch it
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*command, "--dest", folder, f"onnx=={VERSION}"], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.startswith("onnx/backend/test/data/")]
                archive.extractall(folder, names)
            with contextlib.suppress(OSError):  # another one was faster
                (Path(folder) / "onnx").rename(ROOT / "onnx")
    return data


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def shapes(sample: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a sample's tensors."""
    return {name: each.shape for name, each in sample.items() if isinstance(each, np.ndarray)}
