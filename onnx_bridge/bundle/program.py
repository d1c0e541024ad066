"""A program of a bundle: the model for some sizes, loaded from its files, and called with arrays of these sizes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx_bridge.bundle.manifest.compatibility import require_compatible
from onnx_bridge.bundle.manifest.entries import FileInfo, PartitionInfo, ProgramInfo, TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.bundle.partitions import (
    CutModel,
    DevicePartition,
    HostPartition,
    LoadedPartition,
    ProviderPartition,
    parse,
)
from onnx_bridge.bundle.requantize import quantize_again
from onnx_bridge.core.errors import InputError, MigraphxError, ProgramLost, WorkerCrashed
from onnx_bridge.core.values import Kind, Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.provider import provider as providers
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits, limited


class Runnable:
    """A bundle, or one of its programs, which is called with named arrays."""

    def __init__(self, entry: Manifest | ProgramInfo, folder: Path) -> None:
        self._entry, self._folder = entry, folder

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs, in the order of the model; those of a program have fixed sizes."""
        return self._entry.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs, in the order of the model; those of a program have fixed sizes."""
        return self._entry.outputs

    @functools.cached_property
    def specs(self) -> list[samplers.TensorSpec]:
        """The inputs, for `onnx_bridge.samples.inputs`."""
        return [samplers.TensorSpec(info.name, info.numpy, info.shape, kind=Kind(info.kind)) for info in self.inputs]

    @property
    def model_path(self) -> Path | None:
        """The cleaned ONNX; None if only the programs were kept."""
        model = self._entry.model
        return Path(os.path.normpath(self._folder / model[0].file)) if model else None


class Program(Runnable):
    """A program, whose partitions are loaded by the first call (`open` does it at once).

    Its device partitions live in a worker process, which programs share; they are loaded again after the process ended.
    Host partitions run in the process of the reference.

    Args:
        bundle: the bundle's folder, or its program (``.mxr``).
        runtime: which MIGraphX (`onnx_bridge.migraphx.runtime.find`).
        limits: the limits of each of MIGraphX's steps, and of each run of a host partition.

    Attributes:
        path: the folder in which it is a bundle of its own; the bundle's path if there is no such folder.
        loaded: the partitions in execution order; none before they are loaded.
        worker: the process that it lives in; None before it is loaded, or if it has no device partition.
        notes: sentences on how it was loaded.
    """

    def __init__(
        self, bundle: Path, manifest: Manifest, info: ProgramInfo, runtime: str | None, limits: Limits
    ) -> None:
        super().__init__(info, manifest_path(bundle).parent)
        self.path = bundle / info.folder if info.folder else bundle
        self.manifest, self.info = manifest, info
        self.runtime_name, self.limits = runtime, limits
        self.notes: list[str] = []
        self.loaded: tuple[LoadedPartition, ...] = ()
        self._hosts: dict[int, HostPartition] = {}
        self.worker: Worker | None = None

    @property
    def files(self) -> list[Path]:
        """Every ``.mxr`` of it."""
        return [self._folder / program.file for program in self.info.programs]

    def open(self, worker: Worker | None = None) -> None:
        """Load the partitions, into a worker that programs share by default; raises like `onnx_bridge.load`."""
        self._check_files("program", self.info.programs)
        self._check_files("model", () if self.info.wholly_on_migraphx else self.info.model)
        if self.info.programs:
            runtime = worker.runtime if worker else runtimes.find(self.runtime_name)
            require_compatible(self.manifest, runtime, self.path)
            self.worker = worker or workers.shared(runtime, self.info.environment)
        self.notes = []
        cleaned = CutModel(self.model_path)
        with limited(self.limits), self.worker.limited(self.limits) if self.worker else contextlib.nullcontext():
            self.loaded = tuple(self._load(*partition, cleaned) for partition in enumerate(self.info.partitions))

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the program on arrays of its shapes; arguments, outputs and errors are those of `Bundle`."""
        sample = samplers.validate(arrays, self.specs)
        for info in self.inputs:
            info.check(sample[info.name], {})
        if not self.loaded:
            self.open()
        try:
            try:
                return self._run(sample)
            except ProgramLost:  # the worker has ended since, perhaps because of another program
                self.open()
                return self._run(sample)
        except WorkerCrashed:
            if self.model_path is not None:  # ONNX Runtime may refuse the arrays, and say why
                with limited(self.limits), contextlib.suppress(NativeFailure):
                    Reference(self.model_path).run(sample)
            raise

    def close(self) -> None:
        """Release all that was loaded; the next call loads it again."""
        self.loaded, self._hosts, self.worker = (), {}, None

    def _load(self, index: int, info: PartitionInfo, cleaned: CutModel) -> LoadedPartition:
        if info.session is not None:
            assert self.model_path is not None
            provider = providers.shared(runtime=runtimes.find(self.runtime_name))
            return ProviderPartition(info, provider.session(self.model_path), self.limits)
        if info.program is None:
            if index not in self._hosts:
                self._hosts[index] = HostPartition(info, Reference(cleaned.part(info)), self.limits)
            return self._hosts[index]
        return self._load_device(index, info, cleaned)

    def _load_device(self, index: int, info: PartitionInfo, cleaned: CutModel) -> DevicePartition:
        assert self.worker is not None
        assert info.program is not None
        try:
            program = self.worker.load(self._folder / info.program.file)
        except MigraphxError as error:
            if self.model_path is None:
                raise
            self._check_files("model", self.info.model)
            # some operators (ref::quant_dot in 2.14) can be saved and not read back
            with self.part(info, cleaned) as path:
                program = parse(self.worker, path, {tensor.name: tensor.sizes for tensor in info.inputs})
            quantize_again(program, index, self.manifest, self._folder / self.info.folder)
            target = self.manifest.target
            options = CompileOptions.of(self.manifest.request.options, self.worker.runtime, target)
            program.compile(target, **options.compile)
            self.notes.append(
                f"MIGraphX cannot read its program back ({error.what}): compiled again from the cleaned model"
            )
        return DevicePartition(info, program, self.worker, self.limits)

    def part(self, info: PartitionInfo, cleaned: CutModel) -> contextlib.AbstractContextManager[Path]:
        """Return a partition of the cleaned model as a file."""
        if not self.info.is_one_program:
            return cleaned.file(info)
        assert self.model_path is not None
        return contextlib.nullcontext(self.model_path)

    def _run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        wanted = [info.name for info in self.outputs]
        values = dict(sample)
        for index, partition in enumerate(self.loaded, 1):
            values |= partition.run(values)
            if later := self.loaded[index:]:
                kept = {tensor.name for partition in later for tensor in partition.info.inputs}.union(wanted)
                values = {name: value for name, value in values.items() if name in kept}
        return {name: values[name] for name in wanted}

    def _check_files(self, what: str, files: Sequence[FileInfo]) -> None:
        """Require that files to be loaded are those that the manifest describes; raises InputError."""
        for info in files:
            if not (self._folder / info.file).exists():
                problem = f"the {what} is missing from the bundle"
            elif info.problem(self._folder):
                problem = f"the {what} is not the one that the manifest describes"
            else:
                continue
            raise InputError(problem, where=str(self._folder / info.file), hint="convert again")
