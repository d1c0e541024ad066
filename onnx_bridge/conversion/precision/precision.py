"""The precision that a model is computed in: fp32, fp16, bf16, int8 or fp8.

**fp16 and bf16** are made by a pass of this project (`passes.specialize.convert_precision`), not by MIGraphX's
quantizers. These truncate constants on the host, whereas the pass rounds to nearest; they select operators, whereas the
pass can keep any single node in float32; and the result of the pass is ONNX: the reference runs it, layers are compared
in it, and a bundle can be compiled again from it. On ``ref``, whose arithmetic truncates too, errors are about equal.

**int8 and fp8** are made by MIGraphX's quantizers, with ranges measured on samples
(`onnx_bridge.samples.calibration`). The one for int8 quantizes convolutions and matrix products, the one for fp8 every
operator. They cannot exclude nodes: if some are to stay in float32, the other products are quantized in the model
(`onnx_bridge.conversion.precision.quantized_products`), and so are all in fp8 for CDNA 3. A model with QuantizeLinear
nodes is quantized already, and refused. Some quantized programs for ``ref`` cannot be read back; they are quantized
again when the bundle is loaded (`onnx_bridge.bundle.requantize`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.precision.quantized_products import OPSETS, QuantizedProducts, quantize_products
from onnx_bridge.conversion.precision.quantizer import Quantizer
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import flat
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.requests.conversion import BY_CALIBRATION, PRECISIONS, check_precision
from onnx_bridge.samples import files as input_files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.calibration import Calibration, load_calibration
from passes.cleanup.infer_shapes import InferShapes
from passes.graphs.scopes import required_inputs
from passes.legalize.legalize import Legalize
from passes.operators import operators
from passes.rewriting.base import Pass
from passes.rewriting.pipeline import Pipeline, Step
from passes.specialize.convert_opset import ConvertOpset
from passes.specialize.convert_precision import ConvertPrecision

__all__ = ["BY_CALIBRATION", "BY_PASS", "TOLERANCES", "Precision", "precision_notes", "samples_digest"]

BY_PASS = ("fp16", "bf16")
"""The precisions that a pass converts the model to."""
_SKIP = "`prove='never'` skips this check, and `onnx-bridge check` takes tolerances of your own (--rtol, --atol)"
"""The way past a proof whose tolerances, which are those of the precision, do not suit the model."""
TOLERANCES = {"fp32": "float32", **{name: name for name in PRECISIONS[1:]}}
"""The preset of `onnx_bridge.reference.comparison.tolerances` for each."""

_FEATURES = {"bf16": ("quantize_bf16", "2.13"), "fp8": ("quantize_fp8", "2.12")}
"""The feature of a MIGraphX that supports a precision, and the first version that has it."""
_BF16_OPSET = 22
"""The first opset in which Conv, the poolings and others accept bfloat16."""
_LOSING = ("Softmax", "Pow", "ReduceMean", "Mul", "MatMul", "Gemm", "Conv")
"""Operators whose results overflow or lose most, which differ from model to model."""
_LISTED = 3
"""The number of nodes that a message lists."""


def advice(precision: str, *models: ir.Model) -> str:
    """Return what to do if outputs differ from the reference's in a precision, of a model before and after cleaning."""
    if precision not in BY_PASS:
        return _SKIP
    other = next(name for name in BY_PASS if name != precision)
    kinds = [{node.op_type for node in model.graph.all_nodes()} for model in models]
    kept = [name for name in _LOSING if all(name in known for known in kinds)]
    keep = " ".join(f"--keep-fp32 {name}" for name in kept[:_LISTED])
    hint = f", or keep operators that lose most, or overflow, in float32 ({keep})" if kept else ""
    return f"try --precision {other}{hint}; {_SKIP}"


@dataclass(frozen=True)
class Precision:
    """A precision, and what decides on it.

    Attributes:
        name: one of `PRECISIONS`.
        keep: nodes and operators that stay in float32; for int8 and fp8, convolutions and matrix products.
        calibration: samples for int8 and fp8; None generates them.
        in_model: whether products are quantized in the model (`ConvertRequest.quantizes_model`).

    Raises:
        InputError: the precision does not exist, or ``keep`` or ``calibration`` does not apply to it.
    """

    name: str = "fp32"
    keep: tuple[str, ...] = ()
    calibration: input_files.SampleSource | None = None
    in_model: bool = False

    def __post_init__(self) -> None:
        where = f"precision {self.name!r}"
        check_precision(self.name)
        if self.calibration is not None and self.name not in BY_CALIBRATION:
            raise InputError("this precision needs no calibration data", where=where, hint="int8 and fp8 do")
        if self.keep and self.name == "fp32":
            what = "nothing can be kept: all is in float32"
            raise InputError(what, where=where, hint="keep-fp32 is for the other precisions")

    def pipeline(self, base: Pipeline, model: ir.Model) -> Pipeline:
        """Return a pipeline with the passes of this precision, before legalization, which judges their result."""
        opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
        least = {"bf16": _BF16_OPSET, **(OPSETS if self.in_model else {})}.get(self.name, 0)
        new: list[Pass] = [ConvertOpset(to=least)] if opset < least else []
        if self.name in BY_PASS:
            new += [InferShapes(), ConvertPrecision(to=self.name, keep=self.keep), InferShapes()]
        if not new:
            return base
        steps = [item if isinstance(item, str) else item.name for item in base.items]
        index = steps.index(Legalize.name) if Legalize.name in steps else len(steps)
        return Pipeline([*base.items[:index], *new, *base.items[index:]])

    def check_runtime(self, worker: Worker) -> None:
        """Raise InputError if a MIGraphX does not support the precision."""
        feature, since = _FEATURES.get(self.name, ("", ""))
        if feature and feature not in worker.features:
            what = f"this MIGraphX ({worker.version}) does not support the precision: {feature} is missing"
            hint = f"MIGraphX has it since {since}; choose another precision, or a newer MIGraphX"
            raise InputError(what, where=f"precision {self.name!r}", hint=hint)

    def quantizer(self, model: ir.Model, target: str) -> Quantizer | None:
        """Return the quantizer of the programs of a cleaned model, None if there is none; raises InputError."""
        if self.name not in BY_CALIBRATION or self.in_model:
            return None
        return Quantizer(self.name, target, self.samples(model), model)

    def quantized_products(self, model: ir.Model) -> QuantizedProducts | None:
        """Return a cleaned model with all products quantized except the kept ones; None if that does not apply.

        Raises InputError if the model is quantized already, ``keep`` names no product, or the samples are wrong.
        """
        if not self.in_model:
            return None
        return quantize_products(model, self.name, self.keep, self.samples(model))

    def samples(self, model: ir.Model) -> Calibration:
        """Return the samples to calibrate int8 and fp8 on; raises InputError if they are wrong for a model."""
        _refuse_quantized(model, self.name)
        names = {str(value.name) for value in required_inputs(model)}
        return load_calibration(self.calibration, [spec for spec in samplers.specs(model) if spec.name in names])


def samples_digest(calibration: Calibration) -> str:
    """Return the digest of calibration samples."""
    digest = hashlib.sha256()
    for sample in calibration.samples:
        for name, array in sorted(flat(sample).items()):
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def precision_notes(steps: Iterable[Step], precision: str) -> list[str]:
    """Return a sentence on which nodes a pass converted to a precision; none if no pass did."""
    results = [step.result for step in steps if step.name == ConvertPrecision.name]
    if precision not in BY_PASS or not results:
        return []
    converted, skips = len(results[0].rewrites), results[0].skips
    if not converted:
        return [f"nothing is computed in {precision}: the model has no node that can be"]
    listed = "; ".join(f"{skip.node}: {skip.reason}" for skip in skips[:_LISTED])
    more = f"; and {len(skips) - _LISTED} more" if len(skips) > _LISTED else ""
    kept = f", {len(skips)} stay in float32 ({listed}{more})" if skips else ""
    return [f"{converted} nodes are computed in {precision}{kept}"]


def _refuse_quantized(model: ir.Model, precision: str) -> None:
    quantized = [node for node in model.graph.all_nodes() if node.op_type in operators("quantizes", "integers")]
    if not quantized:
        return
    names = ", ".join(f"{node.op_type} {node.name}" for node in quantized[:_LISTED])
    more = f" and {len(quantized) - _LISTED} more" if len(quantized) > _LISTED else ""
    raise InputError(
        f"the model is quantized already: {names}{more}",
        where=f"precision {precision!r}",
        hint="convert it with `precision='fp32'`, which keeps its own quantization, or start from the float model",
    )
