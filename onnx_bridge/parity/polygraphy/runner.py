"""Polygraphy: MIGraphX as one of its runners, and results as files that its tools read.

    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator

    from onnx_bridge.parity.polygraphy.runner import MigraphxRunner

    results = Comparator.run([OnnxrtRunner(SessionFromOnnx("model.onnx")), MigraphxRunner("model.onnx")])

On the command line the same runner is ``polygraphy run model.onnx --onnxrt --migraphx`` (`polygraphy_plugin`). Its ONNX
Runtime optimizes graphs unless ``--graph-optimization-level ORT_DISABLE_ALL`` is given. Polygraphy's comparison accepts
a missing output, and an error within either of its two tolerances; ``onnx-bridge check`` does not.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.conversion.convert import convert
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.model import io as models
from passes.graphs.byte_strings import from_proto
from passes.graphs.scopes import required_inputs

try:
    from polygraphy import util
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata
    from polygraphy.comparator import RunResults
    from polygraphy.datatype import DataType
    from polygraphy.logger import G_LOGGER
except ImportError as error:
    raise InputError("Polygraphy is not installed", hint="pip install 'onnx-bridge[polygraphy]'") from error

Source = str | os.PathLike[str] | onnx.ModelProto
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class MigraphxRunner(BaseRunner):  # type: ignore[misc]
    """Runs a model on MIGraphX in its worker process, and host partitions on ONNX Runtime.

    The model is converted once for each set of input shapes: on activation if all shapes are static.

    Args:
        model: an ONNX file, a model in memory, or a function that returns either.
        name: the name of the runner in Polygraphy's results.
        target: ``gpu``, ``ref``, or ``auto``: gpu if there is one.
        pipeline: the passes, as a specification or the name of a pipeline.
        host: whether ONNX Runtime may run nodes that MIGraphX cannot; if not, such a node is an error.
        timeout: limit in seconds for each of MIGraphX's steps.
        memory: limit in GiB for MIGraphX's process.
    """

    def __init__(
        self,
        model: Source | Callable[[], Source],
        name: str | None = None,
        *,
        target: str = "auto",
        pipeline: str = "default",
        host: bool = True,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        super().__init__(name=name, prefix="migraphx-runner")
        self._source = model
        self._options: dict[str, Any] = {
            "target": target,
            "pipeline": pipeline,
            "host": host,
            "timeout": timeout,
            "memory": memory,
        }

    @util.check_called_by("activate")  # type: ignore[untyped-decorator]
    def activate_impl(self) -> None:
        """Load the model, and convert it if its shapes are static."""
        source, _ = util.invoke_if_callable(self._source)
        self._folder = tempfile.TemporaryDirectory(prefix="onnx-bridge-")
        self._bundles: dict[Shapes, Bundle] = {}
        try:
            self._model = from_proto(source) if isinstance(source, onnx.ModelProto) else models.load(source)
            # a file is converted as a file, so that its weights are mapped
            self._convertible = self._model if isinstance(source, onnx.ModelProto) else Path(source)
            self._inputs = tuple(map(TensorInfo.of, required_inputs(self._model)))
            shapes = [(value.name, value.shape) for value in self._inputs]
            known = [(name, tuple(shape)) for name, shape in shapes if shape is not None and None not in shape]
            if len(known) == len(shapes):
                self._bundle(tuple(known))  # type: ignore[arg-type]
        except BridgeError as error:
            self._folder.cleanup()
            self._fail(error)

    @util.check_called_by("get_input_metadata")  # type: ignore[untyped-decorator]
    def get_input_metadata_impl(self) -> Any:
        """Return the model's inputs; None stands for a symbolic size."""
        metadata = TensorMetadata()
        for value in self._inputs:
            metadata.add(value.name, dtype=DataType.from_dtype(value.numpy), shape=value.shape)
        return metadata

    @util.check_called_by("infer")  # type: ignore[untyped-decorator]
    def infer_impl(self, feed_dict: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model; the arrays of a sequence ``s`` are the outputs ``s[0]``, ``s[1]``, …"""
        arrays: dict[str, Value] = {name: util.array.to_numpy(array) for name, array in feed_dict.items()}
        shapes = tuple((name, array.shape) for name, array in flat(arrays).items())
        try:
            bundle = self._bundle(shapes)
            started = time.perf_counter()
            outputs = bundle(arrays)
        except BridgeError as error:
            self._fail(error)
        self.inference_time = time.perf_counter() - started
        return plain(outputs)

    @util.check_called_by("deactivate")  # type: ignore[untyped-decorator]
    def deactivate_impl(self) -> None:
        for bundle in self._bundles.values():
            bundle.close()
        self._folder.cleanup()
        del self._folder, self._bundles, self._model, self._convertible, self._inputs

    def _bundle(self, shapes: Shapes) -> Bundle:
        """Return the bundle for these shapes, converted and loaded on first use."""
        if shapes not in self._bundles:
            out = Path(self._folder.name) / str(len(self._bundles))
            bundle = convert(self._convertible, out, shapes=dict(shapes), **self._options)
            for note in bundle.manifest.notes:
                G_LOGGER.warning(f"{self.name:35} | {note}")
            bundle.open()
            self._bundles[shapes] = bundle
        return self._bundles[shapes]

    def _fail(self, error: BridgeError) -> None:
        """Raise as Polygraphy's tools do: with one message and no traceback."""
        G_LOGGER.critical(f"{self.name:35} | {error}")


def run_results(runs: Mapping[str, Iterable[Mapping[str, Value]]]) -> Any:
    """Return the outputs of each sample, by the name of the runner, as Polygraphy's ``RunResults``."""
    results = RunResults()
    for name, samples in runs.items():
        results.add([plain(sample) for sample in samples], runner_name=name)
    return results


def save_results(path: str | os.PathLike[str], runs: Mapping[str, Sequence[Mapping[str, Value]]]) -> None:
    """Write outputs, as for `run_results`, as the JSON that Polygraphy reads; raises InputError if that fails.

    ``polygraphy inspect data``, ``polygraphy run --load-outputs`` and ``RunResults.load`` read it.
    """
    write_text(path, run_results(runs).to_json())


def plain(outputs: Mapping[str, Value]) -> dict[str, Array]:
    """Return the arrays in outputs, in the dtypes of numpy, which Polygraphy knows.

    bfloat16 and float8 become float32, integers of 4 and 2 bits int8 or uint8, without loss; strings get a fixed width.
    """
    return {name: array.astype(_plain(array.dtype), copy=False) for name, array in flat(outputs).items()}


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype == np.dtype(object):
        return np.dtype(str)
    if hasattr(np, dtype.name) or dtype.kind in "US":
        return dtype
    if "int" not in dtype.name:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)
