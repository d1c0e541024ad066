"""The conversion of a model into several programs, each a bundle of its own, in one folder.

Its steps are those of any conversion: resolve the request, convert each program, describe all of them in one manifest,
prove that they compute the same together, publish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.programs.bucket_staging import bucket_staging
from onnx_bridge.conversion.programs.instances import (
    Instance,
    check_place,
    common_manifest,
    convert_instances,
    program_in,
    write_manifest,
)
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from passes.core.doubts import Doubts


@dataclass(frozen=True)
class Resolved:
    """The parts of a conversion.

    Attributes:
        source: the model, unless an instance has one of its own.
        instances: the sizes, each with another label.
        whole: how the model without these sizes is cleaned.
        before: the folders of programs that run before them, and are converted already.
        layout: the layout of a decoder; None for other models.
    """

    source: Source
    instances: Sequence[Instance]
    whole: CleanRequest
    before: Sequence[str] = ()
    layout: Layout | None = None


@dataclass(frozen=True)
class Converted:
    """The programs in the staging folder.

    Attributes:
        resolved: what was converted.
        folder: the staging folder.
        cleaned: the cleaned model without the sizes of the instances.
        manifests: the manifests of the instances, as bundles of their own, in order.
    """

    resolved: Resolved
    folder: Path
    cleaned: ir.Model
    manifests: Sequence[Manifest]


class Several(ABC):
    """A conversion, as a request says, into several programs in the folder ``out``, named after ``source``."""

    source: Source
    out: Path
    request: ConvertRequest
    key: str | None

    @property
    def given(self) -> Source:
        """The model that the user named."""
        return self.source

    @property
    @abstractmethod
    def folders(self) -> list[str]:
        """The folders of all programs."""

    @abstractmethod
    def resolve(self, folder: Path, progress: Progress) -> Resolved:
        """Return the parts that are converted into the staging folder."""

    @abstractmethod
    def describe(self, manifest: Manifest, converted: Converted) -> Manifest:
        """Return the manifest of all programs, with inputs and outputs."""

    def prove(self, manifest: Manifest, converted: Converted, progress: Progress) -> Manifest:
        """Return the manifest with the proof of all programs together; raises ParityError."""
        return manifest

    def run(self, progress: Progress) -> Bundle:
        """Convert, and replace an earlier bundle in the folder; errors are those of `onnx_bridge.convert`."""
        doubts = Doubts()
        check_place(self.given, self.out, self.folders)
        with bucket_staging(self.out, self.folders, f"{self.source.name}.onnx.data") as folder:
            resolved = self.resolve(folder, progress)
            cleaned, programs = convert_instances(resolved.source, folder, resolved.instances, resolved.whole, progress)
            programs += [program_in(folder, name, {}) for name in resolved.before]
            manifest, manifests = common_manifest(self.source, self.request, self.key, programs, folder)
            converted = Converted(resolved, folder, cleaned, manifests[: len(resolved.instances)])
            manifest = self.prove(self.describe(manifest, converted), converted, progress)
            proof = replace(manifest.proof, in_doubt=manifest.proof.in_doubt or bool(doubts))
            write_manifest(replace(manifest, proof=proof), folder)
        return Bundle.of(self.out, self.request)
