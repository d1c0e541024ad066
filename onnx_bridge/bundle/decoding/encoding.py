"""The encoding that a decoder generates from: the encoder and the projections of cross-attention, run once a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnx_bridge.bundle.manifest.layout import Encoder
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.samples.inputs import TensorSpec


@dataclass(frozen=True)
class Encoding:
    """The programs that run once for a text: the encoder, and the memory for cross-attention."""

    layout: Encoder
    encoder: Program
    memory: Program

    @property
    def spec(self) -> TensorSpec:
        """The source that the encoder takes."""
        layout, dtypes = self.layout, {tensor.name: tensor.numpy for tensor in self.encoder.inputs}
        batch, count, *others = layout.shape
        return TensorSpec(layout.source, dtypes[layout.source], (batch, None if layout.pads else count, *others))

    @property
    def is_intact(self) -> bool:
        """True if the programs have the inputs and outputs of the layout."""
        encoder = {tensor.name: tensor.sizes for tensor in self.encoder.inputs}
        outputs = {output.name: output.sizes for output in self.encoder.outputs}
        memory = {value.name: value.sizes for value in self.memory.inputs}
        sizes = {**encoder, **outputs, **{output.name: output.sizes for output in self.memory.outputs}}
        return (
            encoder == self.layout.shapes
            and memory == {self.layout.memory: outputs.get(self.layout.hidden)}
            and all(sizes.get(given.value) == given.shape for given in self.layout.given)
        )

    def __call__(self, source: Array, mask: Array | None = None) -> dict[str, Array]:
        """Return the inputs of the decoder that are the same for all tokens.

        Args:
            source: tokens, (batch, count), or features, in the shape of the layout.
            mask: (batch, count), 0 for padding behind shorter sources; default: there is none.

        Raises:
            InputError: the source or the mask has another shape or dtype.
            RuntimeFailure: MIGraphX failed.
        """
        given = self._inputs(np.asarray(source), None if mask is None else np.asarray(mask))
        outputs = self.encoder(given)
        values = {**given, **outputs, **self.memory({self.layout.memory: outputs[self.layout.hidden]})}
        return {info.name: as_array(values[info.value]) for info in self.layout.given}

    def _inputs(self, source: Array, mask: Array | None) -> dict[str, Array]:
        """Return the inputs of the encoder, padded to its size."""
        layout = self.layout
        dtypes = {tensor.name: tensor.numpy for tensor in self.encoder.inputs}
        wanted = dtypes[layout.source]
        same_kind = source.dtype.kind in "iu" if wanted.kind in "iu" else source.dtype.kind == "f"
        if source.ndim != len(layout.shape) or not same_kind:
            what = f"the source is {source.dtype.name}{list(source.shape)}"
            raise InputError(what, hint=f"give {wanted.name}{list(layout.shape)}")
        if mask is not None and (layout.mask is None or mask.shape != source.shape[:2]):
            what = "the encoder takes no mask" if layout.mask is None else f"the mask is {list(mask.shape)}"
            raise InputError(what, hint=f"the source is {list(source.shape)}")
        mask = np.ones(source.shape[:2], np.int64) if mask is None else mask
        missing = layout.shape[1] - source.shape[1]
        fits = source.shape[:1] + source.shape[2:] == layout.shape[:1] + layout.shape[2:]
        if not fits or missing < 0 or not source.size or (missing and not layout.pads):
            what = f"the source has the shape {list(source.shape)}"
            hint = f"the encoder takes {list(layout.shape)}" + (", or fewer tokens" if layout.pads else "")
            raise InputError(what, hint=hint)
        source = np.pad(source, ((0, 0), (0, missing), *((0, 0) for _ in layout.shape[2:])))
        given = {layout.source: source.astype(wanted)}
        if layout.mask is not None:
            given[layout.mask] = np.pad(mask, ((0, 0), (0, missing))).astype(dtypes[layout.mask])
        return given
