"""What the manifest of a decoder says of its programs, and what is refused if they generate something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx_bridge.bundle.decoding.trial import Trial
from onnx_bridge.bundle.manifest.axes import Axis
from onnx_bridge.bundle.manifest.entries import ProgramInfo, TensorInfo
from onnx_bridge.bundle.manifest.layout import WIDTH, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.programs.instances import describe
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import ParityError
from onnx_bridge.requests.conversion import ConvertRequest


def describe_decoder(
    source: Source,
    origin: Mapping[str, str | None],
    request: ConvertRequest,
    key: str | None,
    layout: Layout,
    infos: Sequence[ProgramInfo],
    folder: Path,
) -> Manifest:
    """The manifest of a decoder.

    Args:
        source: the model.
        origin: what the manifest says of it.
        request: how it was converted.
        key: the content key.
        layout: of the decoder.
        infos: its programs.
        folder: where they are.
    """
    common, manifests = describe(source, request, key, infos, folder)
    own = [(info.dims[WIDTH], each) for info, each in zip(infos, manifests, strict=True) if WIDTH in info.dims]
    widths, length = [width for width, _ in own], layout.max_length
    inputs, outputs = (each.inputs for _, each in own), (each.outputs for _, each in own)
    return replace(
        common,
        source=dict(origin),
        inputs=tuple(_tensor(widths, each, length) for each in zip(*inputs, strict=True)),
        outputs=tuple(_tensor(widths, each, length) for each in zip(*outputs, strict=True)),
        decoder=layout,
    )


def refuse_difference(trial: Trial, layout: Layout, model: Path) -> None:
    """Raise ParityError if a decoder generated something else than the reference."""
    if trial.reason is not None:
        raise ParityError(
            f"behind {trial.prompt} tokens it generates something else than ONNX Runtime: {trial.reason}",
            output=layout.logits,
            error=trial.error,
            tolerance=None,
            where=str(model),
            hint="--prove never converts all the same",
        )


def _tensor(widths: Sequence[int], found: Sequence[TensorInfo], length: int) -> TensorInfo:
    """An input or output of all programs: sizes that are the width, or what it leaves of the cache, follow it."""
    axes: list[Axis] = []
    for sizes in zip(*(each.sizes or () for each in found), strict=True):
        if len(set(sizes)) == 1:
            axes.append(sizes[0])
        elif list(sizes) == widths:
            axes.append(WIDTH)
        elif list(sizes) == [length - width for width in widths]:
            axes.append(f"{length} - {WIDTH}")
        else:
            axes.append(None)
    return replace(found[0], shape=tuple(axes))
