"""A bundle: what `convert` writes for one model, and the callable that runs it.

A bundle is a folder (``NAME.mxr``, the cleaned ``NAME.onnx``, ``manifest.json``), or a program alone (``NAME.mxr``)
with its manifest beside it (``NAME.manifest.json``). A model that does not run wholly on MIGraphX is a list of
partitions: each device partition has a program, and host partitions are extracted from the cleaned ONNX, which keeps
their weights.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from onnx_bridge.bundle.files.archive import is_packed
from onnx_bridge.bundle.files.pack import unpacked
from onnx_bridge.bundle.loaded_partitions import CutModel, DevicePartition, HostPartition, LoadedPartition
from onnx_bridge.bundle.manifest.compatibility import require_compatible
from onnx_bridge.bundle.manifest.entries import FileInfo, PartitionInfo, TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.bundle.requantize import quantize_again
from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.errors import InputError, MigraphxError, ProgramLost
from onnx_bridge.core.values import Kind, Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.isolation.limits import Limits, limited


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names a bundle rather than a model."""
    path = Path(path)
    return path.suffix == ".mxr" or is_packed(path) or (path.is_dir() and manifest_path(path).exists())


class Bundle:
    """A converted model: call it with named arrays to run it.

    Programs live in a worker process, which bundles share. They are loaded by the first call (`load` does it at once),
    and again after the process ended. Host partitions run in the process of the reference.

    Args:
        path: its folder, its program, or a packed bundle.
        runtime: which MIGraphX (`onnx_bridge.migraphx.runtime.find`).
        timeout: limit in seconds for each of MIGraphX's steps, and for each run of a host partition.
        memory: limit in GiB for MIGraphX's process, and for ONNX Runtime's.

    Attributes:
        path: its folder, or its program; of a packed bundle, the folder that it was unpacked to.
        manifest: what is known of it.
        runtime_name: the MIGraphX that was asked for; None for the default.
        notes: sentences on how it was loaded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.path = unpacked(path)
        where = manifest_path(self.path)
        if not where.exists():
            what = "there is no such bundle" if not self.path.exists() else "this is not a bundle: it has no manifest"
            raise InputError(what, where=str(self.path), hint="`onnx-bridge convert` makes one")
        self.manifest = Manifest.read(where)
        self.runtime_name = runtime
        self._limits = Limits.of(timeout, memory)
        self._partitions: list[LoadedPartition] = []
        self._hosts: dict[int, HostPartition] = {}
        self._worker: Worker | None = None
        self.notes: list[str] = []

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of the model."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the model."""
        return self.manifest.outputs

    @property
    def proof(self) -> BundleProof:
        """How far its numbers are known."""
        return self.manifest.proof

    @functools.cached_property
    def specs(self) -> list[samplers.TensorSpec]:
        """The inputs, for `onnx_bridge.samples.inputs`."""
        return [samplers.TensorSpec(each.name, each.numpy, each.shape, kind=Kind(each.kind)) for each in self.inputs]

    @property
    def wholly_on_migraphx(self) -> bool:
        """Whether it has no host partitions."""
        return not self.manifest.partitions

    @property
    def worker(self) -> Worker | None:
        """The process that its programs live in; None before they are loaded, or if there are none."""
        return self._worker

    @property
    def limits(self) -> Limits:
        """The limits of each of MIGraphX's steps."""
        return self._limits

    @property
    def program_path(self) -> Path | None:
        """The ``.mxr`` of a model that runs wholly on MIGraphX."""
        return self.program_paths[0] if self.wholly_on_migraphx else None

    @property
    def program_paths(self) -> list[Path]:
        """Every ``.mxr``."""
        return [manifest_path(self.path).parent / each.file for each in self.manifest.programs]

    @property
    def model_path(self) -> Path | None:
        """The cleaned ONNX; None if only the program was kept."""
        files = self.manifest.model
        return Path(os.path.normpath(manifest_path(self.path).parent / files[0].file)) if files else None

    @property
    def loaded(self) -> tuple[LoadedPartition, ...]:
        """The partitions in execution order; none before they are loaded."""
        return tuple(self._partitions)

    def open(self, worker: Worker | None = None) -> None:
        """Load the programs into a worker, and host partitions into ONNX Runtime; raises like `load`.

        Args:
            worker: the process for the programs; default: one that bundles share.
        """
        self._check_files()
        if self.manifest.programs:
            runtime = worker.runtime if worker else runtimes.find(self.runtime_name)
            require_compatible(self.manifest, runtime, self.path)
            self._worker = worker or workers.shared(runtime, self.manifest.environment)
        self.notes = []
        cleaned = CutModel(self.model_path)
        with limited(self._limits), self._worker.limited(self._limits) if self._worker else contextlib.nullcontext():
            self._partitions = [self._open(index, info, cleaned) for index, info in enumerate(self._parts())]

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model.

        Args:
            arrays: an array for each input, by name, in the model's shapes and dtypes. Strings are an array of objects
                or of numpy's string dtype, a sequence is a list of arrays, an empty optional is None.

        Returns:
            The outputs, likewise.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype, or ONNX Runtime refuses it.
            RuntimeFailure: MIGraphX failed, or its process ended.
            NativeFailure: ONNX Runtime exceeded a limit, or has crashed.
        """
        sample = samplers.validate(arrays, self.specs)
        if not self._partitions:
            self.open()
        try:
            return self._run(sample)
        except ProgramLost:  # the worker has ended since, perhaps because of another bundle
            self.open()
            return self._run(sample)

    def close(self) -> None:
        """Release all that was loaded; the next call loads it again."""
        self._partitions, self._hosts, self._worker = [], {}, None

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, target={self.manifest.target!r})"

    def _parts(self) -> tuple[PartitionInfo, ...]:
        manifest = self.manifest
        return manifest.partitions or (PartitionInfo(self.inputs, self.outputs, 0, 0, manifest.program),)

    def _open(self, index: int, info: PartitionInfo, cleaned: CutModel) -> LoadedPartition:
        if info.program is None:
            if index not in self._hosts:
                self._hosts[index] = HostPartition(info, Reference(cleaned.part(info)), self._limits)
            return self._hosts[index]
        assert self._worker is not None
        try:
            program = self._worker.load(manifest_path(self.path).parent / info.program.file)
        except MigraphxError as error:
            if self.model_path is None:
                raise
            self._check_file(*self.manifest.model, what="model")
            # some operators (ref::quant_dot in 2.14) can be saved and not read back
            shapes = {each.name: each.shape for each in info.inputs}
            with cleaned.file(info) if self.manifest.partitions else contextlib.nullcontext(self.model_path) as path:
                program = parse(self._worker, path, shapes)
            quantize_again(program, index, self.manifest, manifest_path(self.path).parent)
            target = self.manifest.target
            options = CompileOptions.of(self.manifest.request.options, self._worker.runtime, target)
            program.compile(target, **options.compile)
            self.notes.append(
                f"MIGraphX cannot read its program back ({error.what}): compiled again from the cleaned model"
            )
        return DevicePartition(info, program, self._worker, self._limits)

    def _run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        wanted = [info.name for info in self.outputs]
        values = dict(sample)
        for index, partition in enumerate(self._partitions, 1):
            values |= partition.run(values)
            if later := self._partitions[index:]:
                kept = {info.name for each in later for info in each.info.inputs}.union(wanted)
                values = {name: value for name, value in values.items() if name in kept}
        return {name: values[name] for name in wanted}

    def _check_files(self) -> None:
        """Require that the files to be loaded are those that the manifest describes; raises InputError."""
        self._check_file(*self.manifest.programs, what="program")
        if self.manifest.partitions:
            self._check_file(*self.manifest.model, what="model")

    def _check_file(self, *files: FileInfo, what: str) -> None:
        folder = manifest_path(self.path).parent
        for info in files:
            if not (folder / info.file).exists():
                problem = f"the {what} is missing from the bundle"
            elif info.problem(folder):
                problem = f"the {what} is not the one that the manifest describes"
            else:
                continue
            raise InputError(problem, where=str(folder / info.file), hint="convert again")
