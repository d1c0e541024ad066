"""The verb ``quantize``: a model in float as a quantized one, by AMD Quark or by ONNX Runtime's quantizer.

From an ONNX file, the graph is quantized. From a PyTorch module, Quark quantizes the module, as a graph of torch.export
where the scheme allows it and else layer by layer (`onnx_bridge.quantization.from_torch`); ONNX Runtime's quantizer
takes the module's export.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.model import io as models
from onnx_bridge.quantization import onnxruntime_quantizer, quark_quantizer
from onnx_bridge.quantization.data_reader import Readings, calibration_for, plain
from onnx_bridge.quantization.deviation import deviations
from onnx_bridge.quantization.prepare import prepared
from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.quantization.schemes import QUANTIZERS, Scheme, scheme_of
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample, specs
from passes.analysis.quantization import is_quantized

Tell = Callable[[str], None]


def quantize(
    src: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str] | None = None,
    *,
    with_: str = "quark",
    scheme: str = "int8",
    calibration: SampleSource | None = None,
    per_channel: bool = False,
    exclude: Sequence[str] = (),
    args: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Quantized:
    """Quantize a model, check that it runs, and say how far it is from the float model.

    Args:
        src: an ONNX file, a model in memory, which is left as it is, or ``package.module:factory``, which gives a
            PyTorch module, or a module and its arguments (see `onnx_bridge.torch.export.factories`).
        out: the file to write; None writes nothing. It changes only once everything is there.
        with_: the quantizer: ``quark`` or ``ort``.
        scheme: what to quantize to, by name (`onnx_bridge.quantization.schemes.SCHEMES`).
        calibration: the data that ranges are measured on (see `onnx_bridge.samples.calibration`); needed by int8,
        int8-pow2,
            uint8, int16 and fp8. The result is compared with the float model on it.
        per_channel: whether weights get a scale for each output channel.
        exclude: what stays in float: names of nodes or operators, for Quark's eager mode of the module's layers.
        args: what a factory's module is called with, where the factory does not say it: as for the verb ``export``.
        progress: told each stage as it begins.

    Raises:
        InputError: the quantizer is not installed, or cannot do the scheme, or this model; the data does not fit; the
            model is quantized already; or ``out`` cannot be written.
    """
    wanted = scheme_of(scheme)
    if with_ not in QUANTIZERS:
        what = f"there is no quantizer {with_!r}"
        raise InputError(what, where="--with", hint=nearest(with_, QUANTIZERS) or f"use {' or '.join(QUANTIZERS)}")
    tell = progress or (lambda _stage: None)
    path = checked_target(out)
    if isinstance(src, ir.Model) or not _names_factory(src):
        wanted.check("ort" if with_ == "ort" else "quark", per_channel=per_channel)
        if path is not None and not isinstance(src, ir.Model) and path.exists() and path.samefile(src):
            raise InputError("the quantized model would overwrite the original", where=str(path))
        model = src if isinstance(src, ir.Model) else models.load(src)
        return _from_graph(model, path, with_, wanted, calibration, per_channel, exclude, (), tell)
    module, given = _made(str(src), args, tell)
    if with_ == "quark":
        from onnx_bridge.quantization.from_torch import quark

        return quark(
            module,
            *given,
            scheme=scheme,
            mode="eager" if "fx" in wanted.refusals else "fx",
            calibration=calibration,
            per_channel=per_channel,
            exclude=exclude,
            out=out,
            progress=progress,
        )
    wanted.check("ort", per_channel=per_channel)
    import onnx_bridge

    exported = onnx_bridge.export(module, *given, progress=progress)
    own: list[Sample] = [dict(exported.samples[0])]
    return _from_graph(exported.model, path, with_, wanted, calibration, per_channel, exclude, own, tell)


def _from_graph(
    model: ir.Model,
    path: Path | None,
    with_: str,
    scheme: Scheme,
    calibration: SampleSource | None,
    per_channel: bool,
    exclude: Sequence[str],
    own: Sequence[Sample],
    tell: Tell,
) -> Quantized:
    with prepared(model, scheme, exclude) as source:
        data = calibration_for(scheme, calibration, specs(model), own)
        readings = Readings(data.samples, tell)
        tell(f"quantize to {scheme.name}")
        notes: tuple[str, ...] = ()
        if with_ == "ort":
            notes = onnxruntime_quantizer.quantize(source, scheme, readings, per_channel=per_channel)
        else:
            quark_quantizer.quantize(source, scheme, readings, per_channel=per_channel)
        made = source.result("Quark" if with_ == "quark" else "ONNX Runtime's quantizer")
        refuse_untouched(made, scheme)
        tell("compare with the float model")
        quantized, original = Reference(made), Reference(model)
        found = deviations(
            lambda sample: quantized.run(plain(sample)), lambda sample: original.run(plain(sample)), data.samples
        )
        if path is not None:
            tell("write")
            models.save(made, path)
            made = models.load(path)
        else:
            made = detached(made)
    return Quantized(
        model=made,
        quantizer=versioned("AMD Quark" if with_ == "quark" else "ONNX Runtime", _PACKAGES[with_]),
        scheme=scheme.name,
        per_channel=per_channel,
        excluded=source.excluded,
        calibration=data.source,
        samples=len(data.samples),
        deviations=found,
        notes=(*data.notes, *notes, *quantized.notes),
        path=path,
    )


_PACKAGES = {"quark": "amd-quark", "ort": "onnxruntime"}


def versioned(name: str, package: str) -> str:
    """A quantizer and its version."""
    return f"{name} {metadata.version(package)}"


def refuse_untouched(model: ir.Model, scheme: Scheme) -> None:
    """Make sure that something was quantized.

    Raises:
        InputError: nothing was.
    """
    if is_quantized(model):
        return
    hint: str | None = None
    if scheme.name == "int4-weights":
        what = "the model has no MatMul with a constant matrix, which alone gets weights of 4 bits"
    else:
        what, hint = (
            "nothing in the model was quantized",
            "it has no operator that the quantizer knows, or all are excluded",
        )
    raise InputError(what, where=scheme.name, hint=hint)


def checked_target(out: str | os.PathLike[str] | None) -> Path | None:
    """Where to write.

    Raises:
        InputError: its folder does not exist.
    """
    path = None if out is None else Path(out)
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError("it cannot be written: its folder does not exist", where=str(path))
    return path


def detached(model: ir.Model) -> ir.Model:
    """A model whose weights are in memory, and no longer in files that will be gone."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            array = value.const_value.numpy().copy()
            value.const_value = ir.tensor(array, dtype=value.const_value.dtype, name=value.name)
    return model


def _names_factory(src: str | os.PathLike[str]) -> bool:
    return isinstance(src, str) and ":" in src and not Path(src).exists() and not src.endswith(".onnx")


def _made(name: str, args: Sequence[str], tell: Tell) -> tuple[Any, tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """The module that a factory gives, and its arguments."""
    from onnx_bridge.torch.export.export import require_torch

    require_torch()
    from onnx_bridge.torch.export import factories

    tell("make the module")
    module, given = factories.load(name)
    chosen = factories.arguments(args) or given
    if chosen is None:
        what = "it gives a module without arguments to call it with"
        raise InputError(what, where=name, hint="say them with --args, or give (module, args)")
    return module, chosen
