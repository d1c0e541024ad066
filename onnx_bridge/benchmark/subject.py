"""The model or bundle that a benchmark measures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.modules import factories


@dataclass(frozen=True)
class Subject:
    """A bundle, or a model in a file.

    Attributes:
        path: the model's file; for a bundle the original model if it still exists unchanged, else the cleaned one.
        digest: the sha256 of the model; None for a model in memory.
    """

    bundle: Bundle | None
    path: Path
    name: str
    digest: str | None

    @classmethod
    def of(cls, model: str | os.PathLike[str] | ir.Model | Bundle, folder: Path, conversion: ConvertRequest) -> Subject:
        """Return the subject; a model in memory is saved into the folder."""
        if isinstance(model, ir.Model):
            path = folder / "model.onnx"
            models.save(model, path)
            return cls(None, path, model.graph.name or "model", None)
        if isinstance(model, Bundle) or is_bundle(model):
            bundle = model if isinstance(model, Bundle) else Bundle.of(model, conversion)
            source = bundle.manifest.source
            original = Path(source["path"]) if source["path"] else None
            unchanged = original is not None and original.exists() and models.digest(original) == source["sha256"]
            model_path = original if unchanged else bundle.model_path
            return cls(bundle, model_path or bundle.path, bundle.manifest.name, source["sha256"])
        path = Path(model)
        return cls(None, path, path.stem, models.digest(path))

    def specs(self) -> list[TensorSpec]:
        """Return the specifications of the inputs."""
        return self.bundle.specs if self.bundle is not None else samplers.specs(models.load(self.path))

    def batch_dimension(self) -> str:
        """Return the name of the inputs' symbolic first dimension; raises InputError if there is not exactly one."""
        dims = {spec.shape[0] for spec in self.specs() if spec.shape and isinstance(spec.shape[0], str)}
        if len(dims) != 1:
            has = f"there are {', '.join(sorted(dims))}" if dims else "the first dimensions of its inputs are fixed"
            raise InputError(f"the model has no batch dimension: {has}", where=str(self.path), hint="omit `batches`")
        return dims.pop()

    def sample(self, inputs: files.SampleSource | None, sizes: Mapping[str, int], seed: int) -> Sample:
        """Return the first of the given samples, or a generated one with these sizes."""
        specs = self.specs()
        if inputs is not None:
            return files.load(inputs, specs, count=1)[0]
        symbols = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
        known = {name: size for name, size in sizes.items() if name in symbols}
        if self.bundle is not None:
            return self.bundle.sample(known or None, seed=seed)
        return samplers.generate(specs, seed=seed, dims=known)[0]


def export_factory(factory: str, folder: Path, open_batch: bool) -> Path:
    """Export a factory's module to an ONNX file; with ``open_batch`` the first dimension of its tensors is open.

    Raises InputError if the factory returns no arguments, or like `onnx_bridge.export`.
    """
    path = folder / f"{factory.rpartition(':')[2]}.onnx"
    module, (args, kwargs) = factories.load_with_arguments(factory)
    dynamic = {}
    if open_batch:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        dynamic = {name: {0: "batch"} for name, argument in bound.items() if getattr(argument, "ndim", 0)}
    export(module, args, kwargs, dynamic=dynamic, out=path)
    return path
