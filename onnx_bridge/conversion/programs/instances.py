"""Instances of a model: the same model with other sizes, a bundle for each in one folder, weights written once.

They are converted in a staging folder, which keeps the instances of an earlier conversion if they are up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.files.verify import intact_manifest
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.entries import FileInfo, ProgramInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import together
from onnx_bridge.bundle.manifest.text import MANIFEST, manifest_path
from onnx_bridge.conversion.cleaning import rewrite
from onnx_bridge.conversion.keys import content_key
from onnx_bridge.conversion.programs.weight_sharing import SharedWeights
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.staging import refuse_to_overwrite
from onnx_bridge.conversion.steps.run import run
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, Stage
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import TOKENIZER
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from onnx_bridge.samples.inputs import Sample
from passes.shapes.inference import infer


@dataclass(frozen=True)
class Instance:
    """A model with some sizes.

    Attributes:
        dims: the sizes that distinguish it; its folder is named after them.
        samples: the samples that it is proven on; default: a generated one.
        source: the model with these sizes, if it differs from the model with other sizes.
    """

    dims: dict[str, int]
    request: ConvertRequest
    samples: Sequence[Sample] = ()
    source: Source | None = None

    @property
    def folder(self) -> str:
        return label(self.dims)


def check_place(source: Source, out: Path, folders: Sequence[str]) -> None:
    """Require that programs may be written into folders in a folder; raises InputError."""
    if out.suffix == ".mxr":
        raise InputError("several programs need a folder", where=str(out), hint="give a name without .mxr")
    name = source.name
    written = [f"{name}.onnx", f"{name}.onnx.data", *(f"{folder}.onnx" for folder in folders), MANIFEST]
    refuse_to_overwrite([out / file for file in written], source.given, out)
    for folder in folders:
        files = [*(f"{name}{ending}" for ending in (".mxr", ".onnx", ".onnx.data")), MANIFEST]
        refuse_to_overwrite([out / folder / file for file in files], source.given, out / folder)


def convert_instances(
    source: Source, folder: Path, instances: Sequence[Instance], whole: CleanRequest, progress: Progress
) -> tuple[ir.Model, list[ProgramInfo]]:
    """Convert a model for several sizes, and clean the model that has no sizes yet.

    Args:
        source: the model.
        folder: the staging folder.
        instances: the sizes, each with another label.
        whole: how the model without these sizes is cleaned.
        progress: called with each stage as it begins, and with details.

    Returns:
        The cleaned model, which is beside the bundles, and the entry of each bundle in the manifest.

    Raises:
        InputError, ParityError, RuntimeFailure: as for `onnx_bridge.convert`.
    """
    progress(Stage.CLEAN)
    cleaned = rewrite(source.model(), whole, progress=progress).model
    infer(cleaned)
    weights = SharedWeights(folder / f"{source.name}.onnx.data")
    # loaded while the weights are still those that they were saved with
    up_to_date = {
        instance.folder: models.load(_model_path(folder / instance.folder))
        for instance in instances
        if instance.request.reuse and _is_complete(folder / instance.folder, instance, source)
    }
    infos: list[ProgramInfo] = []
    for instance in instances:
        bundle = folder / instance.folder
        if instance.folder not in up_to_date:
            run(instance.source or source, bundle, instance.request, progress, instance.samples)
        converted = up_to_date.get(instance.folder) or models.load(_model_path(bundle))
        if not infos:
            weights.gather([cleaned, converted])
        weights.share(bundle, converted)
        infos.append(program_in(folder, instance.folder, instance.dims))
    progress(Stage.FINISH)
    if not weights.save(cleaned, folder / f"{source.name}.onnx"):
        models.save(cleaned, folder / f"{source.name}.onnx")
    return cleaned, infos


def common_manifest(
    source: Source, request: ConvertRequest, key: str | None, infos: Sequence[ProgramInfo], folder: Path
) -> tuple[Manifest, list[Manifest]]:
    """Return the manifest of all programs in a folder, without inputs and outputs, and the manifest of each."""
    manifests = [Manifest.read(manifest_path(folder / info.folder)) for info in infos]
    timings: dict[str, float] = {}
    for manifest in manifests:
        for stage, seconds in manifest.timings.items():
            timings[stage] = round(timings.get(stage, 0) + seconds, 4)
    common = replace(
        manifests[0],
        name=source.name,
        key=key,
        request=request,
        model=(),
        inputs=(),
        outputs=(),
        programs=tuple(infos),
        timings=timings,
        notes=list(dict.fromkeys(note for manifest in manifests for note in manifest.notes)),
        proof=together({info.folder: manifest.proof for info, manifest in zip(infos, manifests, strict=True)}),
    )
    return common, manifests


def program_in(folder: Path, name: str, dims: Mapping[str, int]) -> ProgramInfo:
    """Return the entry of the manifest in ``folder`` for the bundle in its folder ``name``."""
    path = folder / name / MANIFEST
    return Manifest.read(path).program.below(name, dims, FileInfo.of(path))


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest, with the files of the cleaned model, and its tokenizer, beside it; raises InputError."""
    files = [*(folder / f"{manifest.name}{ending}" for ending in (".onnx", ".onnx.data")), folder / TOKENIZER]
    try:
        model = tuple(FileInfo.of(file) for file in files if file.exists())
        replace(manifest, model=model).write(folder / MANIFEST)
    except OSError as error:
        raise InputError(f"the bundle cannot be written: {error.strerror}", where=str(folder)) from error


def _is_complete(bundle: Path, instance: Instance, source: Source) -> bool:
    """Return whether there is an intact bundle of an instance, proven as it should be."""
    key = content_key((instance.source or source).digest, instance.request)
    return key is not None and intact_manifest(bundle, key, instance.request.prove) is not None


def _model_path(bundle: Path) -> Path:
    """Return the cleaned model of a bundle in a folder, which always has one."""
    return bundle / Manifest.read(manifest_path(bundle)).model[0].file
