"""The cleaned model of a conversion: made by the passes, or taken from the bundle that is there already.

Options of compiling, int8 and fp8, the target and whether nodes may run on the host have no part in cleaning. Where
only these have changed since the bundle in OUT was made, its cleaned model is linked into the new one, and the passes
and MIGraphX's verdicts are not asked again. fp16 and bf16 are made by passes, before legalization, and so are cleaned
anew.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import SHARED, Manifest
from onnx_bridge.conversion.clean import Cleaned
from onnx_bridge.conversion.precision import converted
from onnx_bridge.conversion.publish import link
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.model import io as models


@dataclass(frozen=True)
class CleanModel:
    """A cleaned model, and what a manifest says of how it came to be.

    Attributes:
        model: in memory.
        pipeline: the passes that ran.
        passes: what each of them did (`passes.core.pipeline.Step.to_json`).
        notes: what the user should know, in sentences.
        files: where it lies already, the model first; empty for one that was just made, or that shares its weights.
    """

    model: ir.Model
    pipeline: str
    passes: list[dict[str, Any]]
    notes: list[str]
    files: tuple[Path, ...] = ()

    @classmethod
    def of(cls, cleaned: Cleaned, precision: str) -> CleanModel:
        """What `clean` gave."""
        steps = cleaned.steps
        notes = [*cleaned.notes, *converted(steps, precision)]
        return cls(cleaned.model, str(cleaned.pipeline), [step.to_json() for step in steps], notes)

    def write(self, path: Path) -> None:
        """Put it at a path, with its external data beside it; raises as `onnx_bridge.model.io.save`."""
        if not self.files:
            models.save(self.model, path)
        for each in self.files:
            link(each, path.parent / each.name)


def earlier(out: Path, name: str, key: str | None) -> CleanModel | None:
    """The cleaned model of a bundle that was cleaned alike; None where there is none, or it is not whole.

    Args:
        out: the bundle's folder.
        name: of the model, which its files are named after.
        key: the key of the cleaning.
    """
    found = recorded(out)
    if found is None or key is None or found.name != name or found.options["cleaned"]["key"] != key:
        return None
    files = [out / each.file for each in found.model]
    if not files or any(each.problem(out) for each in found.model):
        return None
    own = () if any(each.file.startswith(SHARED) for each in found.model) else tuple(files)
    with contextlib.suppress(BridgeError):
        notes = found.options["cleaned"]["notes"]
        return CleanModel(models.load(files[0]), found.options["pipeline"], found.passes, notes, own)
    return None


def recorded(out: Path) -> Manifest | None:
    """The manifest of the bundle in a folder, where it says how its model was cleaned."""
    place = manifest_path(out)
    with contextlib.suppress(BridgeError):
        if out.suffix != ".mxr" and place.exists():
            found = Manifest.read(place)
            cleaned = found.options.get("cleaned")
            return found if isinstance(cleaned, dict) and {"key", "notes"} <= cleaned.keys() else None
    return None
