"""A bundle: what `convert` writes for one model, and the callable that runs it.

A bundle is a folder (``NAME.mxr``, the cleaned ``NAME.onnx``, ``manifest.json``), or a program alone (``NAME.mxr``)
with its manifest beside it (``NAME.manifest.json``). Where a part of the model runs on the host, it is a list of
partitions: those of MIGraphX have a program each, those of ONNX Runtime are cut out of the cleaned ONNX, whose weights
stay in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_bridge.bundle.loaded_partitions import CutModel, DevicePartition, HostPartition, LoadedPartition
from onnx_bridge.bundle.manifest import FileInfo, Manifest, PartitionInfo, TensorInfo
from onnx_bridge.bundle.pack import home, is_packed
from onnx_bridge.bundle.submodel import parse
from onnx_bridge.conversion.precision import quantize_again
from onnx_bridge.core.errors import InputError, MigraphxError, ProgramLost, RuntimeNotFound
from onnx_bridge.core.values import Kind, Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture, resolve_target
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.samples import inputs as samplers

if TYPE_CHECKING:
    from onnx_bridge.bundle.buckets import Buckets


def manifest_path(path: Path) -> Path:
    """Where the manifest of a bundle lies: ``path`` is its folder, or the name of its program."""
    return path.with_suffix(".manifest.json") if path.suffix == ".mxr" else path / "manifest.json"


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names a bundle rather than a model."""
    path = Path(path)
    return path.suffix == ".mxr" or is_packed(path) or (path.is_dir() and manifest_path(path).exists())


def load(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Bundle | Buckets:
    """Load a bundle, ready to run.

    Args:
        path: its folder, its program (``.mxr``), or the file that it was packed into.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        timeout: most seconds that a call may take.
        memory: most GiB that MIGraphX's process may take.

    Raises:
        InputError: there is no bundle there, or it is damaged or of an unknown format.
        RuntimeNotFound: no MIGraphX here can run it: another version, no GPU, or another kind of GPU.
        RuntimeFailure: MIGraphX cannot read the program.
    """
    from onnx_bridge.bundle.buckets import Buckets, has_buckets  # which are made of bundles

    kind = Buckets if has_buckets(path) else Bundle
    bundle = kind(path, runtime=runtime, timeout=timeout, memory=memory)
    bundle.open()
    return bundle


class Bundle:
    """A converted model: call it with named arrays to run it.

    Programs live in a worker process, which it shares with other bundles; they are loaded with the first call (`load`
    does it at once), and again after the process was lost. Partitions on the host run in this process.

    Attributes:
        path: its folder, or its program; of a packed bundle the folder that it was unpacked into.
        manifest: what is known of it.
        runtime_name: which MIGraphX was asked for; None for the one that is found.
        notes: what the user should know of how it was loaded, in sentences.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.path = home(path)
        where = manifest_path(self.path)
        if not where.exists():
            what = "there is no such bundle" if not self.path.exists() else "this is no bundle: it has no manifest"
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
        """What it takes."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""
        return self.manifest.outputs

    @property
    def specs(self) -> list[samplers.TensorSpec]:
        """What it takes, as `onnx_bridge.samples.inputs` has it."""
        return [samplers.TensorSpec(each.name, each.numpy, each.shape, kind=Kind(each.kind)) for each in self.inputs]

    @property
    def wholly_on_migraphx(self) -> bool:
        """Whether nothing of it runs on ONNX Runtime."""
        return not self.manifest.partitions

    @property
    def worker(self) -> Worker | None:
        """The process that its programs live in; None before they are loaded, and where there are none."""
        return self._worker

    @property
    def limits(self) -> Limits:
        """What each of MIGraphX's steps may take."""
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
        """The cleaned ONNX; None where only the program was kept."""
        files = self.manifest.model
        return Path(os.path.normpath(manifest_path(self.path).parent / files[0].file)) if files else None

    @property
    def loaded(self) -> tuple[LoadedPartition, ...]:
        """Its partitions in order, as they run; none before they are loaded."""
        return tuple(self._partitions)

    def open(self, worker: Worker | None = None) -> None:
        """Load the programs into a worker, and the partitions on the host into ONNX Runtime; raises like `load`.

        Args:
            worker: the process for the programs; default: one that bundles share.
        """
        self._check_files()
        if self.manifest.programs:
            runtime = worker.runtime if worker else runtimes.find(self.runtime_name)
            require(self.manifest, runtime, self.path)
            self._worker = worker or workers.shared(runtime, self.manifest.options.get("environment"))
        self.notes = []
        cleaned = CutModel(self.model_path)
        with self._worker.limited(self._limits) if self._worker else contextlib.nullcontext():
            self._partitions = [self._open(index, info, cleaned) for index, info in enumerate(self._parts())]

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model.

        Args:
            arrays: one array an input, by the model's names, in its shapes and dtypes; strings as an array of objects
                or of numpy's own kind, a list of arrays for a sequence, None for an optional without a value.

        Returns:
            Likewise an output, by the model's names.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype, or ONNX Runtime cannot go on with
                it.
            RuntimeFailure: MIGraphX failed, or its process ended.
        """
        sample = samplers.validate(arrays, self.specs)
        if not self._partitions:
            self.open()
        try:
            return self._run(sample)
        except ProgramLost:  # the worker ended since; it may have been another bundle's fault
            self.open()
            return self._run(sample)

    def close(self) -> None:
        """Let go of all that was loaded; the next call loads it again."""
        self._partitions, self._hosts, self._worker = [], {}, None

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, target={self.manifest.target!r})"

    def _parts(self) -> tuple[PartitionInfo, ...]:
        manifest = self.manifest
        return manifest.partitions or (PartitionInfo(self.inputs, self.outputs, 0, 0, manifest.program),)

    def _open(self, index: int, info: PartitionInfo, cleaned: CutModel) -> LoadedPartition:
        if info.program is None:
            from onnx_bridge.reference.reference import Reference  # bundles without such partitions do not wait for it

            if index not in self._hosts:
                self._hosts[index] = HostPartition(info, Reference(cleaned.part(info)))
            return self._hosts[index]
        assert self._worker is not None
        try:
            program = self._worker.load(manifest_path(self.path).parent / info.program.file)
        except MigraphxError as error:
            if self.model_path is None:
                raise
            self._check_file(*self.manifest.model, what="model")
            # Some operators (ref::quant_dot in 2.14) can be saved and not read back.
            shapes = {each.name: each.shape for each in info.inputs}
            with cleaned.file(info) if self.manifest.partitions else contextlib.nullcontext(self.model_path) as path:
                program = parse(self._worker, path, shapes)
            options, target = self.manifest.options, self.manifest.target
            quantize_again(program, index, options, target, manifest_path(self.path).parent)
            runtime = self._worker.runtime
            program.compile(target, **CompileOptions.of(options.get("compile"), runtime, target).compile)
            self.notes.append(
                f"MIGraphX cannot read its program back ({error.what}): compiled again from the cleaned model"
            )
        return DevicePartition(info, program, self._worker, self._limits)

    def _run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        wanted = [info.name for info in self.outputs]
        values = dict(sample)
        for index, partition in enumerate(self._partitions):
            values |= partition.run({info.name: values[info.name] for info in partition.info.inputs})
            later = {info.name for each in self._partitions[index + 1 :] for info in each.info.inputs}
            values = {name: value for name, value in values.items() if name in later or name in wanted}
        return {name: values[name] for name in wanted}

    def _check_files(self) -> None:
        """Whether what is to be loaded is what the manifest describes."""
        self._check_file(*self.manifest.programs, what="program")
        if self.manifest.partitions:
            self._check_file(*self.manifest.model, what="model")

    def _check_file(self, *files: FileInfo, what: str) -> None:
        folder = manifest_path(self.path).parent
        for info in files:
            if not (folder / info.file).exists():
                said = f"the {what} is missing from the bundle"
            elif info.problem(folder):
                said = f"the {what} is not the one that the manifest describes"
            else:
                continue
            raise InputError(said, where=str(folder / info.file), hint="convert again")


def _release(version: str) -> str:
    """Programs are kept readable within a minor release; beyond it MIGraphX merely warns."""
    return ".".join(version.split(".")[:2])


def require(manifest: Manifest, runtime: Runtime, where: Path) -> None:
    """Make sure that a runtime on this machine can run the programs of a bundle.

    Raises:
        RuntimeNotFound: it is of another version, there is no GPU, or it is another kind of GPU.
    """
    made, here = manifest.versions["migraphx"], runtime.version
    if _release(made) != _release(here):
        raise RuntimeNotFound(
            f"the program was made by MIGraphX {made}, and the one here is {here} ({runtime.path})",
            where=str(where),
            hint="convert again, or choose a runtime with ONNX_BRIDGE_RUNTIME",
        )
    if manifest.target == "gpu":
        resolve_target("gpu", runtime)
        here = gpu_architecture() or "none"
        if manifest.architecture not in (None, here):
            raise RuntimeNotFound(
                f"the program was compiled for {manifest.architecture}, and the GPU here is {here}",
                where=str(where),
                hint="convert again on this machine",
            )
