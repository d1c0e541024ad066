"""A quantized model, and how far it is from the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import clean
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.tolerance import EXACT
from onnx_bridge.core.values import Value, flat
from onnx_bridge.model import io as models
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.quantization.assignment import Assignment
from onnx_bridge.reference.comparison.metrics import Tally, chunks
from onnx_bridge.reference.comparison.tolerances import is_float, largest
from onnx_bridge.requests.schemes import Method, Recipe, Scheme
from onnx_bridge.samples.inputs import Sample
from passes.graphs.quantization import is_quantized

if TYPE_CHECKING:
    from torch import nn

MOST = 32
"""The maximum number of samples that are compared."""
FEW = 4
"""The maximum number on which layers are compared."""

Run = Callable[[Sample], Mapping[str, Value]]


@dataclass(frozen=True)
class Deviation:
    """The distance of one output from that of the float model.

    Attributes:
        max_abs: the largest |quantized − float|.
        largest: the largest |float|.
        sqnr_db: signal to quantization noise, 10 · log₁₀(Σ float² / Σ (quantized − float)²); None if there is no
            noise, or the signal is zero.
    """

    name: str
    max_abs: float
    largest: float
    sqnr_db: float | None


@dataclass(frozen=True)
class Gain:
    """The state after an algorithm, together with those before it.

    Attributes:
        algorithm: its name; ``none`` for the model without any.
        outputs: how far each output is from that of the float model.
        layers: how far the result of each convolution and matrix product is.
    """

    algorithm: str
    outputs: tuple[Deviation, ...]
    layers: tuple[Deviation, ...]

    @property
    def worst(self) -> float:
        """The least signal to noise of an output, in dB."""
        return min((output.sqnr_db for output in self.outputs if output.sqnr_db is not None), default=math.inf)


@dataclass(frozen=True)
class Quantized:
    """A quantized model.

    Attributes:
        model: the quantized graph.
        quantizer: the name and version of the quantizer.
        scheme: the name of the scheme.
        per_channel: whether weights have a scale for each output channel.
        method: what ranges of activations were measured by; None if they were not.
        excluded: the nodes that stayed in float: those that the user excluded, and those that the quantizer fails on.
        calibration: the source of the samples.
        samples: the number of samples: the rows of all batches.
        batches: the number of batches.
        deviations: how far each output is from that of the float model, on ONNX Runtime.
        kernels: the number of convolutions and matrix products by the kernel that a GPU will run them with.
        gains: what each algorithm brought, beginning with the model without any; empty without algorithms.
        accuracy: what the user's ``validate`` returned, by version of a module: float, PTQ and, if trained, QAT.
        notes: what the user should know, in sentences.
        path: the file that was written, if any.
        assignment: the trials of the search for an accuracy, if one was asked for.
        module: the quantized module, with the signature of the original one; None for ONNX models.
    """

    model: ir.Model
    quantizer: str
    scheme: str
    per_channel: bool
    method: Method | None
    excluded: tuple[str, ...]
    calibration: str
    samples: int
    batches: int
    deviations: tuple[Deviation, ...]
    kernels: Mapping[str, int]
    gains: tuple[Gain, ...] = ()
    accuracy: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    path: Path | None = None
    assignment: Assignment | None = None
    module: nn.Module | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": None if self.path is None else str(self.path),
            "quantizer": self.quantizer,
            "scheme": self.scheme,
            "per_channel": self.per_channel,
            "calibrate": self.method,
            "excluded": list(self.excluded),
            "calibration": self.calibration,
            "samples": self.samples,
            "batches": self.batches,
            "opset": self.model.opset_imports.get(""),
            "nodes": self.model.graph.num_nodes(),
            "outputs": [asdict(deviation) for deviation in self.deviations],
            "kernels": dict(self.kernels),
            "gains": [asdict(gain) for gain in self.gains],
            "accuracy": dict(self.accuracy),
            "notes": list(self.notes),
            "assignment": None if self.assignment is None else self.assignment.to_json(),
        }


def gains_of(
    recipe: Recipe,
    measured: Callable[[Recipe], tuple[Sequence[Deviation], Sequence[Deviation]]],
    outputs: Sequence[Deviation],
    layers: Callable[[], Sequence[Deviation]],
    progress: Progress,
) -> tuple[Gain, ...]:
    """Return what each algorithm of a recipe brought, by quantizing with ever more of them; empty without any.

    Args:
        recipe: the recipe of the quantized model.
        measured: quantizes by a recipe with fewer algorithms; returns the deviations of outputs and of layers.
        outputs: the deviations of the quantized model.
        layers: returns those of its layers.
        progress: called before each quantization.
    """
    gains, algorithms = [], recipe.algorithms
    for count in range(len(algorithms)):
        name = algorithms[count - 1][0] if count else "none"
        progress(f"quantize {f'with {name}' if count else 'without algorithms'}, to compare")
        fewer = measured(replace(recipe, algorithms=algorithms[:count]))
        gains.append(Gain(name, *map(tuple, fewer)))
    return (*gains, Gain(algorithms[-1][0], tuple(outputs), tuple(layers()))) if algorithms else ()


def losses(gains: Sequence[Gain]) -> tuple[str, ...]:
    """Return a sentence for each algorithm that makes the worst output worse."""
    pairs = [(gain, before.worst - gain.worst) for before, gain in pairwise(gains)]
    text = "{} made the worst output {:.1f} dB worse: leave it out"
    return tuple(text.format(gain.algorithm, loss) for gain, loss in pairs if loss > 0.05)


def versioned(name: str, package: str) -> str:
    """Return the name of a quantizer with its version."""
    return f"{name} {metadata.version(package)}"


def require_quantized(model: ir.Model, scheme: Scheme) -> None:
    """Check that a quantizer has quantized something; raises InputError if not."""
    if is_quantized(model):
        return
    if scheme.name == "int4-weights":
        what, hint = "the model has no product with a constant matrix, the only weights that are stored in 4 bits", None
    else:
        what = "nothing in the model was quantized"
        hint = "the model has no operator that the quantizer supports, or all are excluded"
    raise InputError(what, where=scheme.name, hint=hint)


def kernels_of(model: ir.Model) -> dict[str, int]:
    """Return the number of a quantized model's products by the kernel that MIGraphX will run them with on a GPU."""
    return forecast(clean(model, pipeline="quantized").model).kernels()


def saved(model: ir.Model, path: Path | None, progress: Progress) -> ir.Model:
    """Return the model, mapped from the file that it is written to, or held in memory if there is none."""
    if path is not None:
        progress("write")
        models.save(model, path)
        return models.load(path)
    for value in model.graph.initializers.values():  # the files that these are mapped from will be deleted
        if value.const_value is not None:
            array = value.const_value.numpy().copy()
            value.const_value = ir.tensor(array, dtype=value.const_value.dtype, name=value.name)
    return model


def deviations(quantized: Run, original: Run, samples: Sequence[Sample]) -> tuple[Deviation, ...]:
    """Compare a quantized model with the original on the first of the samples.

    Args:
        quantized: runs the quantized model; returns outputs by name.
        original: runs the original, with outputs in the same order: they are compared by position.
        samples: at least one.

    Raises:
        InputError: outputs are NaN or Inf only in the quantized model, or have other shapes; or a model cannot be run.
    """
    tallies: dict[str, Tally] = {}
    magnitudes: dict[str, float] = {}
    for sample in samples[:MOST]:
        actual, expected = flat(quantized(sample)), flat(original(sample))
        for (name, array), (_, other) in zip(actual.items(), expected.items(), strict=True):
            if array.shape != other.shape:
                shapes = f"{list(array.shape)} in the quantized model, and {list(other.shape)} in the original"
                raise InputError(f"the shape is {shapes}", where=f"output {name!r}")
            if not is_float(other.dtype) and other.dtype.kind not in "iub":
                continue
            tally = tallies.setdefault(name, Tally(EXACT))
            for chunk in chunks(array, other):
                tally.add(*chunk)
            magnitudes[name] = max(magnitudes.get(name, 0.0), largest(other))
    for name, tally in tallies.items():
        if bad := sum(tally.one_sided.values()):
            what = f"{bad} of {tally.seen} numbers are NaN or Inf only in the quantized model"
            raise InputError(what, where=f"output {name!r}", hint="calibrate on representative data")
    return tuple(_deviation(name, tally, magnitudes[name]) for name, tally in tallies.items())


def _deviation(name: str, tally: Tally, magnitude: float) -> Deviation:
    ratio = tally.metrics().get("sqnr_db")
    return Deviation(name, tally.max_abs, magnitude, ratio if ratio is not None and math.isfinite(ratio) else None)
