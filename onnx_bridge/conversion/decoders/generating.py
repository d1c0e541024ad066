"""Conversions into programs that generate: their manifest, and the trial of all programs together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.trial import Trial
from onnx_bridge.bundle.manifest.axes import Axis
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.manifest.layout import WIDTH, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.program import Program
from onnx_bridge.conversion.precision.precision import advice
from onnx_bridge.conversion.programs.several import Converted, Several
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.progress import Progress
from onnx_bridge.model.folder import TOKENIZER, tokenizer_of
from passes.core.text import counted
from passes.rewriting.base import Proof


class GeneratingConversion(Several):
    """A conversion into the programs of a decoder.

    The converted programs generate beside the reference, whose cache grows: the logits must be the same. Shorter inputs
    are padded only if that is proven.

    Attributes:
        shorter: the inputs that may be padded, in words.
    """

    shorter: str

    @property
    def origin(self) -> dict[str, str | None]:
        """The source as the manifest records it."""
        return self.source.to_json()

    @abstractmethod
    def padded(self, layout: Layout) -> Layout | None:
        """Return a layout with padding; None if there is nothing to pad."""

    @abstractmethod
    def trials(self, decoder: Decoder, converted: Converted, *, shorter: bool) -> Iterable[Trial]:
        """Generate beside the reference, from inputs that need no padding, or from shorter ones."""

    def describe(self, manifest: Manifest, converted: Converted) -> Manifest:
        """Return the manifest, with the inputs and outputs that the programs have in common."""
        layout = converted.resolved.layout
        assert layout is not None
        widths = [program.dims[WIDTH] for program in manifest.programs if WIDTH in program.dims]
        self._take_tokenizer(converted.folder)
        inputs = zip(*(program.inputs for program in converted.manifests), strict=True)
        outputs = zip(*(program.outputs for program in converted.manifests), strict=True)
        return replace(
            manifest,
            source=self.origin,
            inputs=tuple(_common(widths, tensors, layout.max_length) for tensors in inputs),
            outputs=tuple(_common(widths, tensors, layout.max_length) for tensors in outputs),
            decoder=layout,
        )

    def prove(self, manifest: Manifest, converted: Converted, progress: Progress) -> Manifest:
        """Return the manifest of a decoder that generates what the reference generates; raises ParityError."""
        layout = manifest.decoder
        assert layout is not None
        if manifest.proof.level is not Proof.RUN:
            note = f"generation was not compared with the reference, so that {self.shorter} are not padded"
            return replace(manifest, notes=[*manifest.notes, f"{note}: {manifest.proof.unproven}"])
        progress("generating beside the reference")
        error = manifest.proof.error or 0.0
        for trial in self.trials(self._decoder(manifest, layout, converted.folder), converted, shorter=False):
            error = max(error, trial.error)
            self._refuse_difference(trial, layout, converted.cleaned)
        proof = replace(manifest.proof, error=error, what=f"{manifest.proof.what}, and by generating")
        manifest, padded = replace(manifest, proof=proof), self.padded(layout)
        if padded is None:
            return manifest
        for trial in self.trials(self._decoder(manifest, padded, converted.folder), converted, shorter=True):
            if trial.reason is not None:
                after = counted(trial.prompt, "token")
                note = f"{self.shorter} are not padded, since behind {after} the output would differ"
                return replace(manifest, notes=[*manifest.notes, f"{note}: {trial.reason}"])
        return replace(manifest, decoder=padded)

    def _decoder(self, manifest: Manifest, layout: Layout, folder: Path) -> Decoder:
        """Return a decoder of the programs in the staging folder."""
        limits = self.request.limits
        runtime = self.request.runtime
        programs = [Program(folder, manifest, info, runtime, limits) for info in manifest.programs]
        return Decoder(folder, layout, programs)

    def _take_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer beside the model into a folder, so that the bundle takes texts; raises InputError."""
        tokenizer = tokenizer_of(Path(str(self.given.given)))
        try:
            (folder / TOKENIZER).unlink(missing_ok=True)
            if tokenizer is not None:
                (folder / TOKENIZER).write_bytes(read_regular(tokenizer))
        except OSError as error:
            raise InputError(f"the tokenizer cannot be copied: {error}", where=str(tokenizer)) from None

    def _refuse_difference(self, trial: Trial, layout: Layout, cleaned: ir.Model) -> None:
        if trial.reason is not None:
            after = counted(trial.prompt, "token")
            raise ParityError(
                f"behind {after} the decoder's logits differ from ONNX Runtime's: {trial.reason}",
                output=layout.logits,
                error=trial.error,
                tolerance=None,
                where=self.origin["path"] or self.source.name,
                hint=advice(self.request.precision, self.source.view(), cleaned),
            )


def _common(widths: Sequence[int], tensors: Sequence[TensorInfo], length: int) -> TensorInfo:
    """Return an input or output of all programs; sizes that are the width, or the rest of the cache, follow it."""
    shape: list[Axis] = []
    for sizes in zip(*(tensor.sizes or () for tensor in tensors), strict=True):
        if len(set(sizes)) == 1:
            shape.append(sizes[0])
        elif list(sizes) == widths:
            shape.append(WIDTH)
        elif list(sizes) == [length - width for width in widths]:
            shape.append(f"{length} - {WIDTH}")
        else:
            shape.append(None)
    return replace(tensors[0], shape=tuple(shape))
