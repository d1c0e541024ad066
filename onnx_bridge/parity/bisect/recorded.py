"""What a bundle says of how it was made, so that its making can be gone through again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest import Manifest
from onnx_bridge.conversion.precision import BY_CALIBRATION, BY_PASS, TOLERANCES
from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.search import How
from passes.core.pipeline import Pipeline
from passes.specialize.freeze_inputs import FreezeInputs
from passes.specialize.freeze_shapes import FreezeShapes

_OWN: tuple[Literal["pipeline", "dims", "input_shapes", "freeze"], ...] = ("pipeline", "dims", "input_shapes", "freeze")


@dataclass(frozen=True)
class Recorded:
    """The manifest of a bundle, seen as a way to make it.

    Attributes:
        path: the bundle.
        manifest: its manifest.
        model: the cleaned model; None where only the program was kept.
    """

    path: Path
    manifest: Manifest
    model: Path | None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Recorded:
        """Read it.

        Raises:
            InputError: it is damaged, or has buckets.
        """
        bundle = Bundle(path)
        return cls(bundle.path, bundle.manifest, bundle.model_path)

    @property
    def preset(self) -> str | None:
        """The tolerances of what the cleaned model computes in; None where no pass lowered its precision."""
        precision = self.manifest.options.get("precision")
        return TOLERANCES[precision] if precision in BY_PASS else None

    @property
    def calibrated(self) -> Literal["int8", "fp8"] | None:
        """The precision that MIGraphX lowered its programs to; None for that of the cleaned model."""
        precision = self.manifest.options.get("precision")
        return cast(Literal["int8", "fp8"], precision) if precision in BY_CALIBRATION else None

    def source(self) -> Path:
        """The model that it was converted from.

        Raises:
            InputError: it is gone, or was changed since.
        """
        path, digest = self.manifest.source["path"], self.manifest.source["sha256"]
        hint = "name the ONNX file"
        if self.model is not None:
            hint += f"; or look at MIGraphX alone: {self.model} with --pipeline none"
        if path is None:
            raise InputError("it was converted from a model in memory", where=str(self.path), hint=hint)
        if not Path(path).exists():
            raise InputError("the model that it was converted from is gone", where=path, hint=hint)
        if models.digest(path) != digest:
            raise InputError("the model was changed since it was converted", where=path, hint=hint)
        return Path(path)

    def how(self, given: How) -> How:
        """What was given, with the passes, sizes and target of the conversion.

        Raises:
            InputError: others were given.
        """
        self._check(given)
        options = self.manifest.options
        # sizes and frozen inputs are told apart from the passes, as samples go by them
        passes = Pipeline.parse(options["pipeline"]).passes
        rest = Pipeline([each for each in passes if not isinstance(each, (FreezeShapes, FreezeInputs))])
        return {
            **given,
            "pipeline": str(rest) or "none",
            "dims": options["dims"],
            "input_shapes": options["shapes"],
            "freeze": options.get("freeze", {}),
            "target": self.manifest.target,
        }

    def alone(self, given: How) -> tuple[Path, How]:
        """The cleaned model, and how it goes to MIGraphX without further passes.

        Raises:
            InputError: only the program was kept, or other passes or sizes were given.
        """
        self._check(given)
        if self.model is None:
            what = "it keeps no cleaned model"
            raise InputError(what, where=str(self.path), hint="name the ONNX file, or convert into a folder")
        return self.model, {**given, "pipeline": "none", "target": self.manifest.target}

    def _check(self, given: How) -> None:
        for name in _OWN:
            if given.get(name) and (name, given.get(name)) != ("pipeline", "default"):
                what = f"a bundle has its own {name.replace('_', ' ')}, with which it was converted"
                raise InputError(what, where=str(self.path), hint="leave that out, or name the ONNX file")
