"""The precision that a model is computed in: fp32, fp16, bf16, int8 or fp8.

**fp16 and bf16** are made by a pass of this project, `passes.specialize.convert_precision`, rather than by MIGraphX's
quantizers.
These truncate constants on the host, where the pass rounds to the nearest value; they know operators, where the pass
can keep any single node in float32; and what the pass makes is ONNX: the reference runs it, layers are compared in it,
and a bundle is compiled again from it. On ``ref``, whose arithmetic truncates too, errors are about the same.

**int8 and fp8** are made by MIGraphX's quantizers, with ranges measured on data (`onnx_bridge.samples.calibration`).
That for
int8 quantizes convolutions and matrix products, that for fp8 every operator. These keep nothing: where nodes are to
stay in float32, the other products are quantized in the model (`onnx_bridge.conversion.quantized_products`). A model
that has
QuantizeLinear nodes is quantized already and is never given to them. What MIGraphX cannot read back (some quantized
programs for ``ref``) is quantized again when a bundle is loaded, from data that is then kept in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.quantized_products import OPSETS, PRODUCTS, QuantizedProducts, quantize_products
from onnx_bridge.core.errors import InputError, MigraphxError, RuntimeFailure, nearest
from onnx_bridge.core.values import flat
from onnx_bridge.migraphx.program import STORAGE, Program, Tensor
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.samples import files as input_files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.calibration import Calibration, load_calibration
from passes.core.base import Pass
from passes.core.pipeline import Pipeline
from passes.target.partition import Partition, extract

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
"""From wide to narrow."""
BY_PASS = ("fp16", "bf16")
BY_CALIBRATION = ("int8", "fp8")
TOLERANCES = {"fp32": "float32", **{name: name for name in PRECISIONS[1:]}}
"""The preset of `onnx_bridge.reference.tolerances` for each."""
KEPT = "calibration.npz"
"""The file of a bundle with the data that its programs are quantized on again."""

_FEATURES = {"bf16": ("quantize_bf16", "2.13"), "fp8": ("quantize_fp8", "2.12")}
"""What a MIGraphX that knows the format has, and since which version."""
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_BF16_OPSET = 22
"""The first in which Conv, the poolings and others take bfloat16."""
_LISTED = 3


class QuantizationError(RuntimeFailure):
    """MIGraphX did not quantize a program; no node is to blame for that."""


@dataclass(frozen=True)
class Precision:
    """What was asked for.

    Attributes:
        name: of `PRECISIONS`.
        keep: nodes and operators that stay in float32; for int8 and fp8 of those that are products.
        calibration: data for int8 and fp8; None makes some up.

    Raises:
        InputError: there is no such precision, or it has no use for ``keep`` or ``calibration``.
    """

    name: str = "fp32"
    keep: tuple[str, ...] = ()
    calibration: input_files.SampleSource | None = None

    def __post_init__(self) -> None:
        where = f"precision {self.name!r}"
        if self.name not in PRECISIONS:
            hint = nearest(self.name, PRECISIONS) or f"there are {', '.join(PRECISIONS)}"
            raise InputError("there is no such precision", where=where, hint=hint)
        if self.calibration is not None and self.name not in BY_CALIBRATION:
            raise InputError("it needs no calibration data", where=where, hint="int8 and fp8 do")
        if self.keep and self.name == "fp32":
            what = "nothing can be kept: all is in float32"
            raise InputError(what, where=where, hint="keep-fp32 is for the other precisions")

    def pipeline(self, specification: str, model: ir.Model) -> str:
        """The passes that make it, within those that were asked for: before legalization, which judges the result."""
        from passes.cleanup.infer_shapes import InferShapes
        from passes.specialize.convert_opset import ConvertOpset
        from passes.specialize.convert_precision import ConvertPrecision

        steps = list(Pipeline.parse(specification).passes)
        opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
        least = {"bf16": _BF16_OPSET, **(OPSETS if self.keep else {})}.get(self.name, 0)
        new: list[Pass] = [ConvertOpset(to=least)] if opset < least else []
        if self.name in BY_PASS:
            new += [InferShapes(), ConvertPrecision(to=self.name, keep=self.keep), InferShapes()]
        if not new:
            return specification
        place = next((index for index, step in enumerate(steps) if step.name == "legalize"), len(steps))
        return str(Pipeline([*steps[:place], *new, *steps[place:]]))

    def check_runtime(self, worker: Worker) -> None:
        """Require that a MIGraphX knows the format.

        Raises:
            InputError: it does not.
        """
        feature, since = _FEATURES.get(self.name, ("", ""))
        if feature and feature not in worker.features:
            what = f"this MIGraphX ({worker.version}) does not know it: it has no {feature}"
            hint = f"MIGraphX has it since {since}; choose another, or a newer MIGraphX"
            raise InputError(what, where=f"precision {self.name!r}", hint=hint)

    def quantizer(self, model: ir.Model, target: str) -> Quantizer | None:
        """What quantizes the programs of a cleaned model; None where no program is to be quantized.

        Raises:
            InputError: the model is quantized already, or the data is wrong.
        """
        if self.name not in BY_CALIBRATION or self.keep:
            return None
        return Quantizer(self.name, target, self._data(model), model)

    def quantized_products(self, model: ir.Model) -> QuantizedProducts | None:
        """A cleaned model with its products quantized but for what is kept; None where that is not how it is done.

        Raises:
            InputError: the model is quantized already, ``keep`` names no product, or the data is wrong.
        """
        if self.name not in BY_CALIBRATION or not self.keep:
            return None
        return quantize_products(model, self.name, self.keep, self._data(model))

    def _data(self, model: ir.Model) -> Calibration:
        _refuse_quantized(model, self.name)
        names = {str(value.name) for value in model.graph.inputs if not value.is_initializer()}
        return load_calibration(self.calibration, [spec for spec in samplers.specs(model) if spec.name in names])

    def to_json(self) -> dict[str, Any]:
        """For the manifest and for keys."""
        return {"precision": self.name, "keep_fp32": list(self.keep)} if self.keep else {"precision": self.name}

    def to_key(self, measured: Calibration | None = None) -> dict[str, Any]:
        """For content keys: data in files by the digests of these, other data (what was ``measured`` on) by its own."""
        found = self.to_json()
        if isinstance(self.calibration, (str, os.PathLike)):
            path = Path(self.calibration)
            files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
            digests = {str(each): _digest(each) for each in files if each.exists()}
            return {**found, "calibration": {"given": path.name, "files": sorted(digests.values())}}
        if self.calibration is not None and measured is not None:
            return {**found, "calibration": digest(measured)}
        return found


@dataclass
class Quantizer:
    """Quantizes the programs of one model.

    Attributes:
        precision: ``int8`` or ``fp8``.
        target: what the ranges are measured on.
        calibration: the data.
        model: the cleaned model, which partitions are parts of.
        used: the tensors that each partition was calibrated on, by its inputs.
    """

    precision: str
    target: str
    calibration: Calibration
    model: ir.Model
    used: dict[tuple[str, ...], list[dict[str, Tensor]]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What the user should know, in sentences."""
        found = list(self.calibration.notes)
        if not any(node.op_type in PRODUCTS for node in self.model.graph.all_nodes()):
            found.append(f"the model has none of {', '.join(PRODUCTS)}: there is nothing for {self.precision} to do")
        return found

    def __call__(self, program: Program, partition: Partition) -> None:
        """Quantize a parsed program.

        Raises:
            QuantizationError: MIGraphX refused, or its process ended.
        """
        names = tuple(str(value.name) for value in partition.inputs)
        if names not in self.used:
            self.used[names] = self._tensors(names, program)
        quantize(program, self.precision, self.target, self.used[names])

    def _tensors(self, names: Sequence[str], program: Program) -> list[dict[str, Tensor]]:
        """The data at the inputs of a partition: what lies behind other partitions is computed by ONNX Runtime."""
        parameters = program.get_parameter_shapes()
        wanted = [name for name in names if name in parameters]
        given = {name for sample in self.calibration.samples for name in sample}
        inner = [name for name in wanted if name not in given]
        samples: list[Mapping[str, Any]] = list(self.calibration.samples)
        if inner:
            from onnx_bridge.reference.reference import Reference

            inputs = [str(value.name) for value in self.model.graph.inputs if not value.is_initializer()]
            before = Reference(extract(self.model, inputs, inner))
            samples = [
                {**each, **before.run({name: each[name] for name in before.input_names})}
                for each in self.calibration.samples
            ]
        return [
            {
                name: Tensor.of(array.astype(parameters[name].dtype))
                for name, array in flat(each).items()
                if name in wanted
            }
            for each in samples
        ]

    def keep_data(self, path: Path, partitions: Mapping[int, Sequence[str]]) -> None:
        """Write the data of partitions, by their places and inputs, for `quantize_again`."""
        arrays = {
            f"{place}/{number}/{name}": tensor.data
            for place, inputs in partitions.items()
            for number, sample in enumerate(self.used[tuple(inputs)])
            for name, tensor in sample.items()
        }
        np.savez(path, **arrays)  # type: ignore[arg-type]


def recorded(calibration: Calibration) -> dict[str, Any]:
    """What a manifest says of the data."""
    return {"data": calibration.source, "samples": len(calibration.samples)}


def digest(calibration: Calibration) -> str:
    """That of the data."""
    found = hashlib.sha256()
    for sample in calibration.samples:
        for name, array in sorted(flat(sample).items()):
            found.update(f"{name}{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def quantize(program: Program, precision: str, target: str, samples: Sequence[Mapping[str, Tensor]]) -> None:
    """Quantize a parsed program with ranges measured on samples; raises QuantizationError."""
    try:
        if precision == "int8":
            program.quantize_int8(target, samples)
        else:
            program.quantize_fp8(target, samples)
    except RuntimeFailure as error:
        what = f"MIGraphX cannot quantize it to {precision}: {error.what}"
        raise QuantizationError(
            what, hint="is the calibration data of the model's real use?", output=error.output
        ) from error


def quantize_again(program: Program, place: int, options: Mapping[str, Any], target: str, folder: Path) -> None:
    """Quantize a program of a bundle that was parsed again.

    Args:
        program: parsed, not compiled.
        place: of its partition.
        options: the manifest's.
        target: what it is compiled for.
        folder: the bundle's.

    Raises:
        InputError: the data is gone.
    """
    precision = options.get("precision", "fp32")
    if precision not in BY_CALIBRATION or options.get("keep_fp32"):  # which the model itself says
        return
    path, shapes = folder / KEPT, program.get_parameter_shapes()
    samples: dict[str, dict[str, Tensor]] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                partition, number, name = key.split("/", 2)
                if int(partition) == place and name in shapes:
                    kind = shapes[name].type
                    samples.setdefault(number, {})[name] = Tensor(kind, file[key].astype(STORAGE[kind], copy=False))
    except (OSError, ValueError) as error:
        what = f"its program cannot be read back, and the data that it was quantized on is gone: {error}"
        raise InputError(what, where=str(path), hint="convert again") from error
    quantize(program, precision, target, list(samples.values()))


def loads_back(worker: Worker, path: Path) -> bool:
    """Whether MIGraphX reads a program that it wrote."""
    try:
        worker.load(path)
    except MigraphxError:
        return False
    return True


def converted(steps: Iterable[Any], precision: str) -> list[str]:
    """What became of the nodes under the pass for a precision, in a sentence."""
    found = [step.result for step in steps if step.name == "convert-precision"]
    if precision not in BY_PASS or not found:
        return []
    done, skips = len(found[0].rewrites), found[0].skips
    if not done:
        return [f"nothing of it is computed in {precision}: no node is there that could be"]
    listed = "; ".join(f"{each.node}: {each.reason}" for each in skips[:_LISTED])
    more = f"; and {len(skips) - _LISTED} more" if len(skips) > _LISTED else ""
    kept = f", {len(skips)} stay in float32 ({listed}{more})" if skips else ""
    return [f"{done} nodes are computed in {precision}{kept}"]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_quantized(model: ir.Model, precision: str) -> None:
    found = [
        node
        for node in model.graph.all_nodes()
        if node.op_type in _QUANTIZERS or node.op_type.startswith("QLinear") or node.op_type.endswith("Integer")
    ]
    if not found:
        return
    names = ", ".join(f"{node.op_type} {node.name}" for node in found[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise InputError(
        f"the model is quantized already: {names}{more}",
        where=f"precision {precision!r}",
        hint="convert it with --precision fp32, which keeps its own quantization, or start from the float model",
    )
