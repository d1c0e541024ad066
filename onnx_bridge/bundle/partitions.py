"""The partitions of a loaded program: in a worker, and in ONNX Runtime; and how they are taken from a model."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import PartitionInfo, TensorInfo
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.program import OnnxOptions, Tensor
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.provider.provider import Session
from onnx_bridge.reference.reference import Reference
from passes.isolation.limits import Limits, limited
from passes.probing.partition import extract


@dataclass
class HostPartition:
    """A partition on ONNX Runtime, all graph optimizations off; ``seconds`` is the duration of the last run."""

    info: PartitionInfo
    session: Reference
    limits: Limits
    seconds: float = 0.0

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Compute its outputs by name, from values of which some are its inputs."""
        started = time.perf_counter()
        given = {info.name: values[info.name] for info in self.info.inputs}
        with limited(self.limits):
            outputs = self.session.run(given)
        self.seconds = time.perf_counter() - started
        return outputs


@dataclass
class DevicePartition:
    """A partition on MIGraphX."""

    info: PartitionInfo
    program: RemoteProgram
    worker: Worker
    limits: Limits

    @functools.cached_property
    def _given(self) -> list[tuple[TensorInfo, np.dtype[Any] | None]]:
        """The inputs that MIGraphX takes (it drops unused ones), with the dtype of those that it holds in bytes."""
        shapes = self.program.get_parameter_shapes()
        taken = [info for info in self.info.inputs if info.name in shapes]
        return [(info, shapes[info.name].dtype if info.dtype in PACKED else None) for info in taken]

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Compute its outputs by name, from values of which some are its inputs."""
        tensors = {}
        for info, dtype in self._given:
            array = _checked(values[info.name], info)
            tensors[info.name] = Tensor.of(array if dtype is None else array.astype(dtype))
        with self.worker.limited(self.limits):
            results = self.program.run(tensors)
        pairs = zip(self.info.outputs, results, strict=True)
        return {info.name: as_declared(result.numpy(), info.shape, info.numpy) for info, result in pairs}


@dataclass
class ProviderPartition:
    """A partition that ONNX Runtime runs with its MIGraphX provider, the whole of a model."""

    info: PartitionInfo
    session: Session
    limits: Limits

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Compute its outputs by name, from values of which some are its inputs."""
        with limited(self.limits):
            return self.session.run({info.name: values[info.name] for info in self.info.inputs})


LoadedPartition = HostPartition | DevicePartition | ProviderPartition


class CutModel:
    """The cleaned model of a bundle, loaded when the first partition is extracted from it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._model: ir.Model | None = None

    def part(self, info: PartitionInfo) -> ir.Model:
        """Return a partition as a model."""
        return extract(self._loaded(), *_borders(info))

    def file(self, info: PartitionInfo) -> contextlib.AbstractContextManager[Path]:
        """Return a partition as a temporary file."""
        return part_file(self.part(info))

    def _loaded(self) -> ir.Model:
        if self._model is None:
            assert self._path is not None
            self._model = models.load(self._path)
        return self._model


def _borders(info: PartitionInfo) -> tuple[Sequence[str], Sequence[str]]:
    return [tensor.name for tensor in info.inputs], [output.name for output in info.outputs]


def _checked(value: Value, info: TensorInfo) -> Array:
    """Return a value that another partition computed; InputError if it does not have the declared type."""
    assert value is not None
    assert not isinstance(value, list)
    if value.shape != info.shape or value.dtype != info.numpy:
        declared = f"{info.dtype}{list(info.shape or ())}"
        what = f"the value is {value.dtype.name}{list(value.shape)}, and the model says {declared}"
        raise InputError(what, where=f"value {info.name!r}", hint="the shapes that the model declares are wrong")
    return value


PACKED = frozenset({"int4", "uint4"})
"""The dtypes that MIGraphX holds in bytes."""


def as_declared(array: Array, shape: Sequence[object] | None, dtype: np.dtype[Any]) -> Array:
    """Undo what MIGraphX does to scalars (rank 1) and to int4 (held in bytes)."""
    if shape is not None and not len(shape) and array.shape == (1,):
        array = array.reshape(())
    return array.astype(dtype) if dtype.name in PACKED and array.dtype.itemsize == 1 else array


def parse(
    worker: Worker, path: Path, shapes: Mapping[str, Sequence[int | None] | None], *, use_debug_symbols: bool = False
) -> RemoteProgram:
    """Parse a model, whose inputs have these shapes, with MIGraphX; operators keep the names of nodes if it can."""
    # MIGraphX reads a size of 0 in the file as unknown
    empty = {name: [dim or 0 for dim in shape] for name, shape in shapes.items() if shape and 0 in shape}
    named = use_debug_symbols and "debug_symbols" in worker.features
    return worker.parse_onnx(path, OnnxOptions(map_input_dims=empty, use_debug_symbols=named))


@contextlib.contextmanager
def part_file(part: ir.Model) -> Iterator[Path]:
    """Yield a part of a model as a temporary file."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        path = Path(folder) / "partition.onnx"
        models.save(part, path)
        yield path
