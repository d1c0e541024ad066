"""Which nodes must stay in float32 for a model in fewer bits to agree with its reference.

In 16 bits it may be any node that can be computed in these; in int8 and fp8 it is the products, once MIGraphX's own
quantizer, which keeps nothing, has failed. For 16 bits every activation is looked at first: a node that takes or gives
values beyond the format's range is suspected before all others. Then bisection
(`onnx_bridge.benchmark.minimal_subset`) converts,
compiles, and compares with the reference, until the nodes that stay are as few as suffice: no single one of them can be
left out. Their names are what ``--keep-fp32`` takes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.benchmark.minimal_subset import minimal
from onnx_bridge.conversion.clean import Cleaned, clean
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.precision import BY_CALIBRATION, Precision
from onnx_bridge.conversion.quantized_products import products
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, flat
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.model import io as models
from onnx_bridge.parity.check import check
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import PartialTolerance, Tolerance
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.specialize.convert_precision import FORMATS
from passes.target.partition import extract

if TYPE_CHECKING:
    from rich.console import RenderableType

_VALUES = 64
"""Activations that are fetched in one run."""


@dataclass(frozen=True)
class MixedPrecision:
    """What must stay in float32.

    Attributes:
        precision: the format.
        nodes: their names, in the order of the graph; empty where the model agrees without.
        candidates: of how many.
        trials: how often the model was converted and compared.
        out_of_range: the nodes with activations outside the format's range, each with the largest magnitude.
    """

    precision: str
    nodes: tuple[str, ...]
    candidates: int
    trials: int
    out_of_range: Mapping[str, float]

    @property
    def option(self) -> str:
        """What ``convert`` takes."""
        return " ".join([f"--precision {self.precision}", *(f"--keep-fp32 {name}" for name in self.nodes)])

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "precision": self.precision,
            "keep_fp32": list(self.nodes),
            "candidates": self.candidates,
            "trials": self.trials,
            "out_of_range": dict(self.out_of_range),
            "option": self.option,
        }

    def render(self) -> RenderableType:
        """In sentences."""
        lines = [
            f"{name}: values up to {size:.3g}, out of range of {self.precision}"
            for name, size in self.out_of_range.items()
        ]
        if not self.nodes:
            lines.append(f"{self.precision} agrees with the reference; no node has to stay in float32")
        else:
            count = len(self.nodes)
            lines.append(
                f"{count} of {self.candidates} nodes must stay in float32 ({self.trials} trials): {self.option}"
            )
        return "\n".join(lines)


def mixed_precision(
    model: str | os.PathLike[str] | ir.Model,
    precision: str = "fp16",
    *,
    calibration: files.SampleSource | None = None,
    inputs: files.SampleSource | None = None,
    tolerances: Mapping[str, Tolerance | PartialTolerance] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    samples: int | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    host: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> MixedPrecision:
    """Find the nodes that must stay in float32 for a model to agree with its reference in another precision.

    Args:
        model: an ONNX file, or a model in memory.
        precision: ``fp16``, ``bf16``, ``int8`` or ``fp8``.
        calibration: for int8 and fp8, as for `convert`.
        inputs: samples to compare on, as for `check`; default: seeded ones.
        tolerances: as for `check`; default: the preset of the precision.
        rtol: likewise.
        atol: likewise.
        seed: likewise.
        samples: likewise.
        target: as for `convert`.
        pipeline: likewise.
        dims: likewise.
        host: likewise.
        timeout: likewise.
        memory: likewise.
        progress: told each trial as it begins.

    Raises:
        InputError: an argument is wrong, or the model does not even agree with all of these nodes in float32.
        RuntimeFailure: MIGraphX failed.
    """
    Precision(precision, (), calibration)
    if precision == "fp32":
        raise InputError("all is in float32", where="precision 'fp32'", hint="there are fp16, bf16, int8 and fp8")
    tell = progress or (lambda _stage: None)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        file = Path(folder) / "model.onnx"
        if isinstance(model, ir.Model):
            models.save(model, file)
        else:
            file = Path(model)
        verdicts = ProbedRuntime(runtimes.find())
        names, beyond = _candidates(
            precision,
            lambda specification: clean(file, pipeline=specification, dims=dims, default_dim=1, target=verdicts),
            pipeline,
            models.load(file),
            lambda float_model: _samples(float_model, inputs, seed, samples),
        )
        asked: dict[frozenset[str], bool] = {}

        def agrees(kept: Sequence[str]) -> bool:
            key = frozenset(kept)
            if key not in asked:
                tell(f"trial {len(asked) + 1}: {len(kept)} of {len(names)} nodes in float32")
                # with all products in float32 nothing is quantized
                now = "fp32" if precision in BY_CALIBRATION and len(kept) == len(names) else precision
                bundle = convert(
                    file,
                    Path(folder) / "bundle",
                    target=target,
                    pipeline=pipeline,
                    dims=dims,
                    host=host,
                    precision=now,
                    calibration=calibration if now in BY_CALIBRATION else None,
                    keep_fp32=list(kept) if now != "fp32" else (),
                    timeout=timeout,
                    memory=memory,
                )
                report = check(
                    bundle,
                    reference=file,
                    inputs=inputs,
                    seed=seed,
                    samples=samples,
                    rtol=rtol,
                    atol=atol,
                    tolerances=tolerances,
                )
                report.raise_failure()
                asked[key] = report.passed
            return asked[key]

        ordered = sorted(names, key=lambda name: name not in beyond)
        if not agrees([]) and not agrees(ordered):
            what = "the model differs from its reference with all of its nodes in float32, too"
            raise InputError(what, where=str(file), hint="`onnx-bridge check` and `bisect` say where")
        found = set(minimal(ordered, agrees))
    return MixedPrecision(precision, tuple(name for name in names if name in found), len(names), len(asked), beyond)


def _candidates(
    precision: str,
    cleaned: Callable[[str], Cleaned],
    pipeline: str,
    model: ir.Model,
    samples: Callable[[ir.Model], Sequence[samplers.Sample]],
) -> tuple[list[str], dict[str, float]]:
    """The nodes that may stay in float32, and those whose activations are beyond the range of 16 bits."""
    if precision in BY_CALIBRATION:
        return [str(node.name) for node in products(cleaned(pipeline).model)], {}
    steps = cleaned(Precision(precision).pipeline(pipeline, model)).steps
    step = next(each for each in steps if each.name == "convert-precision")
    names = [each.before[0] for each in step.result.rewrites]
    float_model = cleaned(pipeline).model
    return names, _beyond(float_model, set(names), precision, samples(float_model))


def _samples(model: ir.Model, inputs: files.SampleSource | None, seed: int, count: int | None) -> list[samplers.Sample]:
    initializers = set(model.graph.initializers)
    specs = [spec for spec in samplers.specs(model) if spec.name not in initializers]
    if inputs is not None:
        return files.load(inputs, specs, count=count)
    return samplers.generate(specs, seed=seed, samples=count or 1)


def _beyond(model: ir.Model, names: set[str], precision: str, samples: Sequence[samplers.Sample]) -> dict[str, float]:
    """The nodes that take or give values beyond the range of a format, with the largest."""
    limits: Any = ml_dtypes.finfo(FORMATS[precision].numpy())  # type: ignore[no-untyped-call]
    limit = float(limits.max)
    values = {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and value.dtype == ir.DataType.FLOAT and value.uses()
    }
    inputs = [str(value.name) for value in model.graph.inputs if not value.is_initializer()]
    largest: dict[str, float] = {}
    wanted = list(values)
    for start in range(0, len(wanted), _VALUES):
        part = Reference(extract(model, inputs, wanted[start : start + _VALUES]))
        for sample in samples:
            found = part.run({name: sample[name] for name in part.input_names})
            for name, array in flat(found).items():
                largest[name] = max(largest.get(name, 0.0), _largest(array))
    beyond: dict[str, float] = {}
    for node in model.graph:
        around = [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
        size = max((largest.get(name, 0.0) for name in around), default=0.0)
        if size > limit and node.name in names:
            beyond[str(node.name)] = size
    return beyond


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=~np.isnan(array)))
