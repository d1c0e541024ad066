"""Minimization: a model that shows a symptom, made smaller as long as it shows it.

The nodes come first (`onnx_bridge.core.delta_debug.ddmin`); then the rest, as a model of its own: its outputs, its
sizes, the elements of its arrays. An attempt counts only if ONNX Runtime runs it, and MIGraphX shows the same symptom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, flat
from onnx_bridge.parity.submodels.submodels import RunCounts, Submodel
from onnx_bridge.parity.symptoms.symptom import Symptom
from onnx_bridge.parity.symptoms.symptom_detector import SymptomDetector
from onnx_bridge.reference.comparison.tolerances import is_float
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from passes.core.errors import PassError
from passes.isolation.failure import NativeFailure
from passes.probing.partition import extract

_SHAPE_ELEMENTS = 16
"""The most elements of a list of integers that may be a shape."""
_MAX_SIMPLIFIED = 16
"""The most arrays whose elements are simplified."""


@dataclass(frozen=True)
class Reproduction:
    """A model, a sample of its inputs, and the reference's outputs, which show a symptom on MIGraphX."""

    model: ir.Model
    sample: Mapping[str, Array]
    expected: Mapping[str, Array]
    symptom: Symptom


@dataclass
class Minimizer:
    """Makes a reproduction smaller, and tells each attempt."""

    detector: SymptomDetector
    runs: RunCounts
    tell: Callable[[str], None]

    def attempt(self, model: ir.Model, sample: Sample, symptom: Symptom) -> Reproduction | None:
        """Return the reproduction of a model and a sample; None if they do not show the symptom."""
        self.runs.reference += 1
        try:
            expected = Reference(model).run(sample)
        except (InputError, NativeFailure):
            return None
        for value in model.graph.outputs:
            array = expected[str(value.name)]
            if not isinstance(array, np.ndarray):
                return None
            value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
        shown = self.detector.detect([Submodel(model, [sample], [expected], [0])])
        if shown is None or not shown.matches(symptom):
            return None
        return Reproduction(model, flat(sample), flat(expected), shown)

    def minimize(self, reproduction: Reproduction) -> Reproduction:
        """Return the reproduction with fewer outputs, smaller sizes and simpler elements."""
        reproduction = self._outputs(reproduction)
        reproduction = self._sizes(reproduction)
        return self._elements(reproduction)

    def _outputs(self, reproduction: Reproduction) -> Reproduction:
        names = [str(value.name) for value in reproduction.model.graph.outputs]
        if len(names) == 1:
            return reproduction
        countdown = Countdown(self.tell, "one output alone", len(names), step_name="output")
        for name in names:
            inputs = list(reproduction.sample)
            try:
                model = extract(reproduction.model, inputs, [name])
            except PassError:
                countdown.step()
                continue
            used = {value.name for value in model.graph.inputs if value.uses()}
            for value in [unused for unused in model.graph.inputs if unused.name not in used]:
                model.graph.inputs.remove(value)
            sample: Sample = {key: array for key, array in reproduction.sample.items() if key in used}
            smaller = self.attempt(model, sample, reproduction.symptom)
            if smaller is not None:
                return smaller
            countdown.step()
        return reproduction

    def _sizes(self, reproduction: Reproduction) -> Reproduction:
        arrays = [*reproduction.sample.values(), *_constants(reproduction.model).values()]
        sizes = sorted({size for array in arrays for size in array.shape if size > 1}, reverse=True)
        countdown = Countdown(self.tell, "smaller sizes", len(sizes), step_name="size")
        for size in sizes:
            for smaller in sorted({1, 2, size // 2} - {size}):
                attempts = (self.attempt(*part, reproduction.symptom) for part in _resized(reproduction, size, smaller))
                resized = next(filter(None, attempts), None)
                if resized is not None:
                    reproduction = resized
                    break
            countdown.step()
        return reproduction

    def _elements(self, reproduction: Reproduction) -> Reproduction:
        candidates = [*reproduction.sample.items(), *_constants(reproduction.model).items()][:_MAX_SIMPLIFIED]
        arrays = {name: array for name, array in candidates if is_float(array.dtype) and array.size > 1}
        countdown = Countdown(self.tell, "simpler elements", len(arrays), step_name="tensor")
        for name, array in arrays.items():
            for simple in _simpler(array):
                if np.array_equal(simple, array):
                    break
                model, sample = reproduction.model.clone(), dict(reproduction.sample)
                if name in sample:
                    sample[name] = simple
                else:
                    model.graph.initializers[name].const_value = ir.Tensor(simple, name=name)
                simpler = self.attempt(model, {**sample}, reproduction.symptom)
                if simpler is not None:
                    reproduction = simpler
                    break
            countdown.step()
        return reproduction


def without_metadata(reproduction: Reproduction) -> Reproduction:
    """Return the reproduction without metadata, which may name files of this machine."""
    model = reproduction.model.clone()
    model.metadata_props.clear()
    model.doc_string = model.graph.doc_string = None
    model.producer_name = model.producer_version = None
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    return replace(reproduction, model=model)


def _constants(model: ir.Model) -> dict[str, Array]:
    """Return the initializers that are numbers."""
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    constants = {name: tensor for name, tensor in tensors.items() if tensor and tensor.dtype != ir.DataType.STRING}
    return {name: np.asarray(tensor.numpy()) for name, tensor in constants.items()}


def _resized(reproduction: Reproduction, size: int, smaller: int) -> Iterator[tuple[ir.Model, Sample]]:
    """Yield the model with a size made smaller wherever it occurs.

    Short lists of integers may be shapes, in which the size is an element; indices, whose number is the size; or
    neither (pads). Each is tried.
    """
    constants = _constants(reproduction.model)
    lists = {name for name, array in constants.items() if array.dtype == np.int64 and array.size <= _SHAPE_ELEMENTS}
    shapes = {name: np.where(constants[name] == size, np.int64(smaller), constants[name]) for name in lists}
    indices = {name: _sliced(constants[name], size, smaller) for name in lists}
    tried: list[dict[str, Array]] = []
    for values in (shapes, {}, indices):
        changed = {name: array for name, array in values.items() if not np.array_equal(array, constants[name])}
        if any(changed.keys() == earlier.keys() for earlier in tried):
            continue
        tried.append(changed)
        model = reproduction.model.clone()
        for node in model.graph:
            for value in node.outputs:
                value.shape = None
        for name, array in constants.items():
            array = changed.get(name, array) if name in lists else _sliced(array, size, smaller)
            value = model.graph.initializers[name]
            value.const_value = ir.Tensor(array, name=name, dtype=ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape(array.shape)
        sample: Sample = {name: _sliced(array, size, smaller) for name, array in reproduction.sample.items()}
        for value in model.graph.inputs:
            value.shape = ir.Shape(np.shape(sample[str(value.name)]))  # type: ignore[arg-type]
        yield model, sample


def _sliced(array: Array, size: int, smaller: int) -> Array:
    places = tuple(slice(smaller) if length == size else slice(None) for length in array.shape)
    return np.array(array[places], order="C")


def _simpler(array: Array) -> Iterator[Array]:
    """Yield arrays with elements that are easier to read, the easiest first."""
    yield np.ones_like(array)
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        yield np.round(wide).astype(array.dtype)
        yield np.round(wide, 1).astype(array.dtype)
