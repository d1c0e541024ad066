"""A bundle: what `convert` writes for one model, and the callable that runs it.

A bundle is a folder (``NAME.mxr``, the cleaned ``NAME.onnx``, ``manifest.json``), or a program alone (``NAME.mxr``)
with its manifest beside it (``NAME.manifest.json``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge import inputs as samplers
from onnx_bridge.conversion.manifest import FileInfo, Manifest, TensorInfo
from onnx_bridge.errors import InputError, MigraphxError, ProgramLost, RuntimeNotFound
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.program import OnnxOptions, Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import RemoteProgram, Worker

Array = np.ndarray[Any, np.dtype[Any]]


def manifest_path(path: Path) -> Path:
    """Where the manifest of a bundle lies: ``path`` is its folder, or the name of its program."""
    return path.with_suffix(".manifest.json") if path.suffix == ".mxr" else path / "manifest.json"


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names a bundle rather than a model."""
    path = Path(path)
    return path.suffix == ".mxr" or (path.is_dir() and manifest_path(path).exists())


def load(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Bundle:
    """Load a bundle, ready to run.

    Args:
        path: its folder, or its program (``.mxr``).
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        timeout: most seconds that a call may take.
        memory: most GiB that MIGraphX's process may take.

    Raises:
        InputError: there is no bundle there, or it is damaged or of an unknown format.
        RuntimeNotFound: no MIGraphX here can run it: another version, no GPU, or another kind of GPU.
        RuntimeFailure: MIGraphX cannot read the program.
    """
    bundle = Bundle(path, runtime=runtime, timeout=timeout, memory=memory)
    bundle.open()
    return bundle


class Bundle:
    """A converted model: call it with named arrays to run it.

    The program lives in a worker process, which it shares with other bundles; it is loaded with the first call
    (`load` does it at once), and again after the process was lost.

    Attributes:
        path: its folder, or its program.
        manifest: what is known of it.
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
        self.path = Path(path)
        where = manifest_path(self.path)
        if not where.exists():
            what = "there is no such bundle" if not self.path.exists() else "this is no bundle: it has no manifest"
            raise InputError(what, where=str(self.path), hint="`onnx-bridge convert` makes one")
        self.manifest = Manifest.read(where)
        self._runtime_name = runtime
        self._limits = Limits.of(timeout, memory)
        self._program: RemoteProgram | None = None
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
        """What it takes, as `onnx_bridge.inputs` has it."""
        return [samplers.TensorSpec(each.name, dtype_named(each.dtype), each.shape) for each in self.inputs]

    @property
    def program_path(self) -> Path:
        """The ``.mxr``."""
        return manifest_path(self.path).parent / self.manifest.program.file

    @property
    def model_path(self) -> Path | None:
        """The cleaned ONNX; None where only the program was kept."""
        files = self.manifest.model
        return manifest_path(self.path).parent / files[0].file if files else None

    def open(self) -> None:
        """Load the program into a worker; raises like `load`."""
        runtime = runtimes.find(self._runtime_name)
        self._check(runtime)
        self._worker = workers.shared(runtime)
        with self._worker.limited(self._limits):
            try:
                self._program = self._worker.load(self.program_path)
            except MigraphxError as error:
                if self.model_path is None:
                    raise
                # Some operators (ref::quant_dot in 2.14) can be saved and not read back.
                self._program = parse(self._worker, self.model_path, self.inputs)
                self._program.compile(self.manifest.target)
                self.notes = [
                    f"MIGraphX cannot read its program back ({error.what}): compiled again from the cleaned model"
                ]

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model.

        Args:
            arrays: one array an input, by the model's names, in its shapes and dtypes.

        Returns:
            One array an output, by the model's names.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype.
            RuntimeFailure: MIGraphX failed, or its process ended.
        """
        sample = samplers.validate(arrays, self.specs)
        if self._program is None:
            self.open()
        try:
            return self._run(sample)
        except ProgramLost:  # the worker ended since; it may have been another bundle's fault
            self.open()
            return self._run(sample)

    def close(self) -> None:
        """Let go of the program; the next call loads it again."""
        self._program = self._worker = None

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, target={self.manifest.target!r})"

    def _run(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        assert self._program is not None
        assert self._worker is not None
        shapes = self._program.get_parameter_shapes()
        # MIGraphX holds int4 in bytes; and it keeps no parameter that nothing uses
        tensors = {
            name: Tensor.of(array.astype(shapes[name].dtype) if array.dtype.name in _PACKED else array)
            for name, array in sample.items()
            if name in shapes
        }
        with self._worker.limited(self._limits):
            results = self._program.run(tensors)
        return {
            info.name: _as_declared(result.numpy(), info) for info, result in zip(self.outputs, results, strict=True)
        }

    def _check(self, runtime: Runtime) -> None:
        manifest = self.manifest
        program = self.program_path
        if not program.exists():
            raise InputError("the program is missing from the bundle", where=str(program), hint="convert again")
        if FileInfo.of(program) != manifest.program:
            raise InputError(
                "the program is not the one that the manifest describes", where=str(program), hint="convert again"
            )
        made, here = manifest.versions["migraphx"], runtime.version
        if _release(made) != _release(here):
            raise RuntimeNotFound(
                f"the program was made by MIGraphX {made}, and the one here is {here} ({runtime.path})",
                where=str(self.path),
                hint="convert again, or choose a runtime with ONNX_BRIDGE_RUNTIME",
            )
        if manifest.target == "gpu":
            runtimes.resolve_target("gpu", runtime)
            here = runtimes.gpu() or "none"
            if manifest.architecture not in (None, here):
                raise RuntimeNotFound(
                    f"the program was compiled for {manifest.architecture}, and the GPU here is {here}",
                    where=str(self.path),
                    hint="convert again on this machine",
                )


def parse(worker: Worker, path: Path, infos: Iterable[TensorInfo]) -> RemoteProgram:
    """Let MIGraphX parse a cleaned model that takes ``infos``."""
    # a size of 0 reads as unknown to MIGraphX, unless it is given like this
    empty = {info.name: info.shape for info in infos if 0 in info.shape}
    return worker.parse_onnx(path, OnnxOptions(map_input_dims=empty))


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of that name, numpy's or ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


_PACKED = frozenset({"int4", "uint4"})


def _as_declared(array: Array, info: TensorInfo) -> Array:
    """Undo what MIGraphX does to scalars (rank 1) and to int4 (held in bytes); all else stays as it came."""
    if info.shape == () and array.shape == (1,):
        array = array.reshape(())
    if info.dtype in _PACKED and array.dtype.name == info.dtype.replace("int4", "int8"):
        array = array.astype(dtype_named(info.dtype))
    return array


def _release(version: str) -> str:
    """Programs are kept readable within a minor release; beyond it MIGraphX merely warns."""
    return ".".join(version.split(".")[:2])
