"""The earlier bundle in a folder: the whole if a conversion would make it again, its cleaned model if it cleans alike.

Compile options, int8 and fp8, the target, and whether nodes may run on the host do not affect cleaning. If only these
have changed since the bundle in OUT was made, its cleaned model is linked into the new one, and neither the passes nor
MIGraphX's verdicts are needed. fp16 and bf16 are made by passes, before legalization, so that models are cleaned again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.files.verify import intact_manifest
from onnx_bridge.bundle.manifest.entries import CleaningInfo
from onnx_bridge.bundle.manifest.manifest import SHARED, Manifest
from onnx_bridge.bundle.manifest.text import manifest_path, read_text, unsealed
from onnx_bridge.conversion.keys import content_key
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.staging import link, sweep
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import stop_tokens
from onnx_bridge.requests.conversion import ConvertRequest
from passes.rewriting.base import Proof


@dataclass(frozen=True)
class PassResults:
    """A model after its passes, and what a manifest records of them.

    Attributes:
        pipeline: the passes that ran, as text.
        passes: the results of each pass (`passes.rewriting.pipeline.Step.to_json`).
        chosen: the sizes that nobody chose, by input and dimension.
        files: its files, the model first; empty for a new model, or for one that shares its weights.
    """

    model: ir.Model
    pipeline: str
    passes: list[dict[str, Any]]
    notes: list[str]
    chosen: dict[str, dict[str, int]]
    files: tuple[Path, ...] = ()

    def write(self, path: Path) -> None:
        """Write the model, with its external data beside it; raises like `onnx_bridge.model.io.save`."""
        if not self.files:
            models.save(self.model, path)
        for file in self.files:
            link(file, path.parent / file.name)


def up_to_date(source: Source, out: Path, request: ConvertRequest) -> Bundle | None:
    """Return the earlier bundle in ``out`` if the conversion would make it again; None if something has changed.

    It is intact, has the content key of the conversion, and is proven as the request asks; a larger budget than it had
    may prove it at real size. Its cleaned model names the same file as its source.

    Raises:
        InputError: the model cannot be read, or the pipeline is wrong.
    """
    if not (request.reuse and request.cache and manifest_path(out).exists()):
        return None
    source.hash()
    key = content_key(source.digest, request)
    manifest = None if key is None else intact_manifest(out, key, request.prove)
    if manifest is None or (manifest.name, manifest.source) != (source.name, source.to_json()):
        return None
    if manifest.proof.level is not Proof.RUN and request.prove_budget > manifest.request.prove_budget:
        return None
    if manifest.decoder is not None and manifest.decoder.stop != stop_tokens(Path(str(source.given))):
        return None
    if out.suffix != ".mxr":
        sweep(out)
    bundle = Bundle.of(out, request)
    bundle.is_kept = True
    return bundle


class EarlierBundle:
    """The bundle in a folder, if its manifest says how its model was cleaned (``cleaning``; otherwise None)."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._manifest: Manifest | None = None
        with contextlib.suppress(BridgeError):
            if out.suffix != ".mxr" and manifest_path(out).exists():
                manifest = Manifest.read(manifest_path(out))
                self._manifest = manifest if unsealed(read_text(manifest_path(out))) is None else None
        self._program = self._manifest.programs[0] if self._manifest and not self._manifest.dims else None
        self.cleaning: CleaningInfo | None = self._program.cleaning if self._program else None

    def cleaned(self, name: str, key: str | None) -> PassResults | None:
        """Return its cleaned model, if it is intact and has the name and the key of the cleaning."""
        manifest, program, cleaning = self._manifest, self._program, self.cleaning
        if manifest is None or program is None or cleaning is None or manifest.name != name:
            return None
        if key is None or cleaning.key != key:
            return None
        if not program.model or any(file.problem(self._out) for file in program.model):
            return None
        files = tuple(self._out / file.file for file in program.model)
        shared = any(file.file.startswith(SHARED) for file in program.model)
        with contextlib.suppress(BridgeError):
            model = models.load(files[0])
            files = () if shared else files
            return PassResults(model, program.pipeline, program.passes, cleaning.notes, manifest.chosen, files)
        return None
