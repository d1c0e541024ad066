"""The model that is converted: parsed once, and hashed once, in the background."""

from __future__ import annotations

import functools
import re
from concurrent.futures import Future
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.background import Background
from onnx_bridge.model import io as models
from onnx_bridge.model.file import ModelFile
from onnx_bridge.requests.request import ModelSource


class Source:
    """A model file, or a model in memory (``given``), whose ``name`` files are named after."""

    def __init__(self, given: ModelSource, *, name: str | None = None, digest: str | None = None) -> None:
        """Create a source; the name and the digest of a model in memory may be given."""
        self.given = given
        self._spare: ir.Model | None = None
        self._digest: Future[str] | str | None = digest
        if name is not None:
            self.name = name
        elif isinstance(given, ir.Model):
            self.name = re.sub(r"[^\w.-]+", "_", given.graph.name or "") or "model"
        else:
            self.name = Path(given).stem

    @classmethod
    def of(cls, model: ModelSource | Source) -> Source:
        """Return a model as a source; a source itself stays the same."""
        return model if isinstance(model, Source) else cls(model)

    @functools.cached_property
    def _file(self) -> ModelFile | None:
        return None if isinstance(self.given, ir.Model) else ModelFile(Path(self.given))

    def hash(self, background: Background | None = None) -> None:
        """Parse the file, and start to hash it in the background, or hash it at once; raises InputError."""
        if self._file is not None and self._digest is None:
            self._digest = background.submit(models.digest, self._file) if background else models.digest(self._file)

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the file; the given digest, or None, of a model in memory. Waits for the background."""
        return self._digest.result() if isinstance(self._digest, Future) else self._digest

    def to_json(self) -> dict[str, str | None]:
        """Return the path and the digest, for the manifest."""
        path = None if isinstance(self.given, ir.Model) else str(Path(self.given).absolute())
        return {"path": path, "sha256": self.digest}

    def view(self) -> ir.Model:
        """Return the model, to look at until the next call of `model`, which gives it away."""
        if self._spare is None:
            self._spare = self.model()
        return self._spare

    def model(self) -> ir.Model:
        """Return a new copy of the model, which may be modified; weights are shared; raises InputError."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            return spare
        if isinstance(self.given, ir.Model):
            return self.given.clone()
        assert self._file is not None
        return models.load(self._file)
