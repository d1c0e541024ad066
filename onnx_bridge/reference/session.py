"""A session of the reference, in the process that `onnx_bridge.reference.server` runs in: nothing else opens one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.model import io as models
from onnx_bridge.reference import ops_libraries
from onnx_bridge.reference.faithful import faithful
from onnx_bridge.reference.missing_kernels.decoded_constants import decode_constants
from onnx_bridge.reference.missing_kernels.half_emulation import emulate_halves, takes
from onnx_bridge.reference.missing_kernels.random_operators import downgrade_random_operators
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, Reason
from onnx_bridge.reference.output_dtypes import narrow, widen_outputs
from onnx_bridge.reference.quark.emulation import Emulation
from onnx_bridge.reference.unknown_operators import explained
from passes.evaluation.constant_session import unreleased_opsets
from passes.graphs.byte_strings import from_proto
from passes.graphs.scopes import name_nodes, scopes

_SILENT = 4
"""ONNX Runtime's severity "fatal": errors are raised as exceptions, the log adds nothing."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""A part of a name of a file that is not text, which ONNX Runtime does not take."""
_PLAIN = re.compile(r"(optional\()?(seq\()?tensor\((float|double|float16|u?int(8|16|32|64)|bool|string)\)*")
"""The types that ONNX Runtime converts to numpy arrays correctly (float8e4m3fn would become uint8)."""

_Model = ir.Model | Path | bytes | models.SessionSource
_ELEMENTS = {"float": ir.DataType.FLOAT, **{dtype.name.lower(): dtype for dtype in ir.DataType}}
"""Element types by ONNX Runtime's name."""


class Session:
    """A model, ready to be run by ONNX Runtime.

    Attributes:
        input_names, output_names: in the model's order.
        notes: sentences for the user about how it computes.
    """

    def __init__(
        self,
        model: _Model,
        *,
        custom_op_libraries: Sequence[Path] = (),
        where: str = "the model",
        emulate: bool = False,
    ) -> None:
        """Load a model; further arguments and errors are those of `onnx_bridge.reference.reference.Reference`.

        Args:
            model: the model; the weights of one in memory are not copied.
            where: the model, for errors.
            emulate: whether to compute AMD Quark's operators without their library.
        """
        self._where = where
        self._source: models.SessionSource | None = None
        self._emulation: Emulation | None = None
        self._reuses_memory = True
        self.notes: tuple[str, ...] = ()
        if not isinstance(model, models.SessionSource):
            model, self.notes = faithful(model)
        if isinstance(model, Path) and _SURROGATE.search(str(model)):
            model = models.load(model)
        if emulate:
            emulation = Emulation(
                _in_memory(model), lambda part: Session(part, custom_op_libraries=custom_op_libraries).run
            )
            self._emulation, self._types = emulation, {}
            self.input_names: tuple[str, ...] = emulation.input_names
            self.output_names: tuple[str, ...] = emulation.output_names
            note = "AMD Quark's library of operators is not available: the reference emulates these operators in numpy"
            self.notes = (*self.notes, note)
            return
        self._session = self._open(model, custom_op_libraries)
        if isinstance(model, Path) and any("map(" in value.type for value in self._session.get_outputs()):
            model = models.load(model)  # with the scores of classes as tensors
            self._session = self._open(model, custom_op_libraries)
        self.input_names = tuple(value.name for value in self._session.get_inputs())
        outputs = self._session.get_outputs()
        self.output_names = tuple(value.name for value in outputs)
        self._types = {value.name: (str(value.type), list(value.shape or ())) for value in outputs}
        self._plain = all(_PLAIN.fullmatch(value.type) for value in outputs)
        self._unusual = {
            name: ir.DataType(kind)
            for name, (kind, _) in self.output_types().items()
            if not _PLAIN.fullmatch(self._types[name][0])
        }
        self._model, self._libraries = model, custom_op_libraries
        self._wide: Session | None = None
        for value in outputs:
            if "map(" in value.type or "sparse" in value.type:
                what = f"the output {value.name!r} is not a tensor but {value.type}"
                raise InputError(what, where=self._where)

    def output_types(self) -> dict[str, tuple[int, tuple[int | None, ...]]]:
        """Return the element types and shapes of outputs that are tensors, as ONNX Runtime infers them."""
        types = {}
        for name, (kind, dims) in self._types.items():
            element = re.fullmatch(r"tensor\((\w+)\)", kind)
            if element and (dtype := _ELEMENTS.get(element[1])) is not None:
                types[name] = int(dtype), tuple(dim if isinstance(dim, int) else None for dim in dims)
        return types

    def run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        """Return all outputs by name, as `onnx_bridge.reference.reference.Reference.run`; raises InputError."""
        if self._emulation is not None:
            return self._emulation.run(sample)
        if self._unusual and self._needs_lists(sample):
            return self._run_widened(sample)
        feeds = {name: _feed(value, name) for name, value in sample.items()}
        if not self._plain:
            feeds = {name: _ort_value(feed, name) for name, feed in feeds.items() if feed is not None}
        pairs = zip(self.output_names, self._computed(feeds), strict=True)
        return {name: result if self._plain else _array(result, name) for name, result in pairs}

    def _computed(self, feeds: dict[str, Any]) -> Any:
        """Return the outputs as ONNX Runtime gives them.

        It plans which tensors may share memory by the shapes that it infers, or that the model declares, for
        intermediate values. If one is wrong, as in decoders of onnxruntime-genai's builder, each tensor gets memory of
        its own, and what is declared is forgotten.
        """
        try:
            run = self._session.run if self._plain else self._session.run_with_ort_values
            return run(None, feeds)
        except Exception as error:  # ONNX Runtime raises its own classes, RuntimeError and ValueError
            # no local variable for it: with its traceback it would keep this session until garbage is collected
            if not self._reuses_memory or OnnxRuntimeError(str(error), where=None).reason is not Reason.DECLARED_SHAPE:
                raise OnnxRuntimeError(str(error), where=self._where) from error
        self._reuses_memory, self._model = False, _loosened(_in_memory(self._model))
        self._session = self._open(self._model, self._libraries)
        return self._computed(feeds)

    def _open(self, model: _Model, custom_op_libraries: Sequence[Path]) -> Any:
        """Return a session, for a model in a form that ONNX Runtime takes."""
        try:
            return self._load(model, custom_op_libraries)
        except OnnxRuntimeError as error:
            if error.reason is Reason.UNKNOWN_OPERATOR:
                reason = explained(error, _in_memory(model))
                installed = [path for path in ops_libraries.of_domain(reason.domain) if path not in custom_op_libraries]
                if not installed:
                    raise reason from error
                return self._open(model, (*custom_op_libraries, *installed))
            if isinstance(model, bytes):
                raise
            if error.reason is Reason.OTHER:
                return self._load(_loosened(_in_memory(model)), custom_op_libraries)
            if error.reason not in (Reason.NEWER_IR_VERSION, Reason.NO_KERNEL):
                raise
            loaded = models.owned(model if isinstance(model, ir.Model) else _in_memory(model))
            if error.newest_ir_version is not None:  # a newer version stores the same computation
                loaded.ir_version = error.newest_ir_version
                return self._open(loaded, custom_op_libraries)
            return self._load(_supported(loaded) or loaded, custom_op_libraries)

    def _needs_lists(self, sample: Mapping[str, Value]) -> bool:
        """Return whether there are inputs or outputs that cannot be OrtValues."""
        given = any(
            isinstance(value, list) or (value is not None and value.dtype.kind in "OUST") for value in sample.values()
        )
        return given or any(not kind.startswith("tensor(") for kind, _ in self._types.values())

    def _run_widened(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        if self._wide is None:
            widened = widen_outputs(_in_memory(self._model), self._unusual)
            self._wide = Session(widened, custom_op_libraries=self._libraries, where=self._where)
        results = self._wide.run(sample).values()
        pairs = zip(self.output_names, results, strict=True)
        return {name: narrow(value, self._unusual.get(name)) for name, value in pairs}

    def _load(self, model: _Model, libraries: Sequence[Path]) -> Any:
        options = _options(libraries)
        options.enable_mem_reuse = self._reuses_memory
        if isinstance(model, (ir.Model, models.SessionSource)):
            self._source = models.session_source(model) if isinstance(model, ir.Model) else model
            self._source.add_to(options)
            model = self._source.model
        try:
            with unreleased_opsets():
                return onnxruntime.InferenceSession(
                    model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:
            raise OnnxRuntimeError(str(error), where=self._where) from error


def _in_memory(model: _Model) -> ir.Model:
    if isinstance(model, models.SessionSource):
        return model.to_model()
    if isinstance(model, bytes):
        return from_proto(onnx.ModelProto.FromString(model))
    return models.load(model) if isinstance(model, Path) else model


def _supported(model: ir.Model) -> ir.Model | None:
    """Return the model, which may be changed, in a form that ONNX Runtime has kernels for; None if there is none.

    Constants are decoded from dtypes without kernels; few kernels take bfloat16, which is emulated; and the kernels
    that draw random numbers are of older opsets.
    """
    decoded = decode_constants(model)
    model = decoded or model
    bfloat16 = {ir.DataType.BFLOAT16}
    if takes(model, bfloat16):
        return emulate_halves(model, bfloat16)
    return downgrade_random_operators(model) or decoded


def _loosened(model: ir.Model) -> ir.Model:
    """Return a model with distinct names of nodes, without what is declared of results and constants: hints."""
    model = models.owned(model)
    for scope in scopes(model):
        for value in name_nodes(scope).values():
            if value.const_value is not None:
                value.shape = ir.Shape(value.const_value.shape.numpy())
            elif value.producer() is not None:
                value.type, value.shape = value.type if value.is_graph_output() else None, None
    return model


def _options(libraries: Sequence[Path]) -> Any:
    """Return session options for one attempt: weights that are added to them stay in them."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _SILENT
    options.use_deterministic_compute = True
    # threads that wait for work would use as much time of processors as those that compute
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for library in (*libraries, *ops_libraries.chosen()):
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:
            raise OnnxRuntimeError(str(error), where=str(library)) from error
    return options


def _feed(value: Value, name: str) -> Any:
    """Return a value as a session takes it; a sequence remains a list, a missing optional None."""
    if isinstance(value, list):
        return [_feed_array(item, name) for item in value]
    return None if value is None else _feed_array(value, name)


def _feed_array(array: Array, name: str) -> Any:
    """Return an array as a session takes it: itself, or an OrtValue if numpy does not know the dtype.

    An OrtValue requires contiguous memory, and sub-byte integers to be packed.
    """
    if array.dtype.kind in "OUST":
        return array.astype(object)
    try:
        element = ir.DataType.from_numpy(array.dtype)
    except TypeError:
        raise InputError(f"ONNX has no element type for {array.dtype}", where=f"input {name!r}") from None
    if hasattr(np, array.dtype.name):
        return array
    if element.bitwidth < 8:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(element))
        packed = ir.tensor(array, dtype=element).tobytes()
        ctypes.memmove(value.data_ptr(), packed, len(packed))
        return value
    dense = np.ascontiguousarray(array).reshape(array.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(dense, int(element))


def _ort_value(feed: Any, name: str) -> Any:
    if isinstance(feed, onnxruntime.OrtValue):
        return feed
    if isinstance(feed, list) or feed.dtype == np.dtype(object):
        what = "strings and sequences cannot be fed to a model with optional bfloat16, float8 or sub-byte outputs"
        raise InputError(what, where=f"input {name!r}", hint="cast those outputs to float32 in the model")
    return onnxruntime.OrtValue.ortvalue_from_numpy(feed)


def _array(value: Any, name: str) -> Array | None:
    """Return an output as an array; None for an optional without a value."""
    if not value.has_value():
        return None
    if not value.is_tensor():
        what = "a sequence beside optional bfloat16, float8 or sub-byte outputs cannot be fetched"
        raise InputError(what, where=f"output {name!r}", hint="make it, or those outputs, plain in the model")
    if _PLAIN.fullmatch(value.data_type()):
        return np.asarray(value.numpy())
    element, shape = ir.DataType(value.element_type()), value.shape()
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), dtype=np.uint8)
    if element.bitwidth < 8:
        return np.asarray(ir.PackedTensor(raw, element, shape=shape).numpy())
    return raw.view(element.numpy()).reshape(shape)
