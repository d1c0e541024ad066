"""The reference: ONNX Runtime on the CPU with all graph optimizations off, in a process with limits.

Graph optimizations fuse and reorder operators, which changes results: by a whole quantization step on a QDQ
convolution.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.files.known_digests import State, file_state
from onnx_bridge.core.values import Array, Value
from onnx_bridge.model import io as models
from onnx_bridge.model.storage import Span
from onnx_bridge.reference import ops_libraries
from onnx_bridge.reference.faithful import faithful
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, UnknownOperator
from onnx_bridge.reference.quark import library as quark_library
from passes.graphs.scopes import weight_bytes
from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits
from passes.isolation.messages import FileRange, Message
from passes.isolation.process import Child
from passes.isolation.worker import Lost
from passes.operators import QUARK_DOMAINS, STANDARD_DOMAINS

SERVER = "onnx_bridge.reference.server"
SECONDS = 600.0
"""The time limit of loading a model, and of each run, if the user gives none."""

_ASKED_BYTES = 1 << 26
"""The most bytes of weights of a model that is loaded only to know whether ONNX Runtime takes it: 50 ms."""

_CHANGING = 4
"""The parts of the state of a file that change with its content: a new link to it changes the rest, too."""

_dropped: list[tuple[int, int]] = []
"""Sessions that nothing refers to any more, after the id of their process, which is told with the next request."""


class Reference:
    """A model, ready to be run by ONNX Runtime.

    The session lives in a process that all of them share (`passes.isolation.worker`), with the limits of the verb
    that runs, and is opened again if that process has ended since. AMD Quark's operators come from Quark's own
    library, if it is installed; otherwise they are emulated.

    Attributes:
        input_names, output_names: in the model's order.
        runs: the runs that are kept.
        notes: sentences for the user about how it computes.
    """

    def __init__(
        self,
        model: ir.Model | Path | bytes,
        *,
        custom_op_libraries: Sequence[Path] = (),
        runs: KeptRuns | None = None,
    ) -> None:
        """Load a model.

        Args:
            model: a file is read by ONNX Runtime itself, which maps its external data; of a model in memory, weights
                that are in files are mapped from these; bytes are a serialized model.
            custom_op_libraries: libraries of custom operators (``.so``) that the model needs.
            runs: its outputs of earlier runs (`kept_runs`), which are returned, and kept.

        Raises:
            InputError: ONNX Runtime does not take the model, or a library; or an output is a map or a sparse tensor.
            NativeFailure: a limit was exceeded, or ONNX Runtime has crashed.
        """
        self._where = str(model) if isinstance(model, Path) else "the model"
        self.runs = runs or KeptRuns(None)
        notes: tuple[str, ...] = ()
        if isinstance(model, ir.Model):
            model, notes = faithful(model)
        # the session is opened again from this: a model in memory may have been changed meanwhile
        self._source = models.session_source(model) if isinstance(model, ir.Model) else model
        self._libraries = [str(path) for path in custom_op_libraries]
        self._quark: dict[str, Any] = {}
        self._state: State | None = None
        try:
            described = self._open()
        except OnnxRuntimeError as error:
            library = quark_library.library() if error.domain in QUARK_DOMAINS else None
            if error.domain not in QUARK_DOMAINS or (library is None and isinstance(model, bytes)):
                raise
            self._quark = {"quark": None if library is None else str(library)}
            described = self._open()
        self.input_names: tuple[str, ...] = tuple(described["inputs"])
        self.output_names: tuple[str, ...] = tuple(described["outputs"])
        self._types = {name: (ir.DataType(kind), tuple(dims)) for name, (kind, dims) in described["types"].items()}
        self.notes = (*notes, *described["notes"])

    def output_types(self) -> dict[str, tuple[ir.DataType, tuple[int | None, ...]]]:
        """Return the dtypes and shapes of outputs that are tensors, as ONNX Runtime infers them."""
        return self._types

    def run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        """Compute all outputs.

        Args:
            sample: arrays by input name; bfloat16, float8 and 4-bit and 2-bit integers as ml_dtypes have them, strings
                as object arrays. A sequence is a list of arrays, an optional without a value None.

        Returns:
            The outputs by name, in the model's order; the arrays are read-only.

        Raises:
            InputError: the sample does not fit the model, or ONNX Runtime fails.
            NativeFailure: a limit was exceeded, or ONNX Runtime has crashed.
        """
        _check_dtypes(sample)
        return self.runs.outputs(sample, lambda: self._run(sample))

    def _run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        (entries,), arrays = value_messages.pack([sample])
        while True:
            try:
                request = {"do": "run", "session": self._session, "sample": entries}
                answer, received = self._call(request, arrays, self._process)[0]
            except Lost:
                self._open()
                continue
            return value_messages.unpack([answer["outputs"]], received)[0]

    def _open(self) -> dict[str, Any]:
        """Let the process open the session, and return its description."""
        request: dict[str, Any] = {"do": "open", "where": self._where, "libraries": self._libraries, **self._quark}
        arrays: dict[str, Array | FileRange] = {}
        if isinstance(self._source, Path):
            request["path"] = path = str(self._source.absolute())
            state = file_state(path)
            if self._state not in (None, state and state[:_CHANGING]):
                what, hint = "the file was changed while it was in use", "repeat the command"
                raise InputError(what, where=self._where, hint=hint)
            self._state = state and state[:_CHANGING]
        elif isinstance(self._source, bytes):
            arrays["model"] = value_messages.from_bytes(self._source)
        else:
            arrays["model"] = value_messages.from_bytes(self._source.model)
            weights = self._source.weights
            request["weights"] = {name: [int(weight.dtype), weight.shape] for name, weight in weights.items()}
            arrays |= {f"weight {name}": _sent(weight) for name, weight in weights.items()}
        (answer, _), self._process = self._call(request, arrays)
        self._session: int = answer["session"]
        weakref.finalize(self, _dropped.append, (self._process.pid, self._session))
        return answer

    def _call(
        self, request: Mapping[str, Any], arrays: Mapping[str, Array | FileRange], process: Child | None = None
    ) -> tuple[Message, Child]:
        drop = [_dropped.pop() for _ in range(len(_dropped))]
        try:
            return called({**request, "drop": drop}, arrays, limits.current(SECONDS), process)
        except NativeFailure as failure:
            failure.where = self._where
            raise


def kept_runs(
    digest: str | None,
    model: ir.Model,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    by_onnx: bool = False,
    fresh: bool = False,
) -> KeptRuns:
    """Return the runs of a model; none are kept without a digest, or if operators come from libraries.

    Args:
        digest: the digest of its file (`onnx_bridge.model.io.digest`).
        model: the model in the file.
        shapes: the shapes of inputs, if they differ from the declared ones.
        by_onnx: ONNX's own evaluator runs it.
        fresh: run again what is kept.
    """
    if digest is None or ops_libraries.chosen() or not model.opset_imports.keys() <= {*STANDARD_DOMAINS, "ai.onnx.ml"}:
        return KeptRuns(None)
    sizes = {name: list(shape) for name, shape in (shapes or {}).items()}
    code = code_digest(SERVER)
    return KeptRuns({"reference": digest, "shapes": sizes, "by ONNX": by_onnx, "code": code}, fresh=fresh)


def load_error(model: ir.Model) -> InputError | None:
    """Return why ONNX Runtime does not take a model; None if it does, or if its weights take too long to load."""
    if weight_bytes(model) <= _ASKED_BYTES:
        try:
            Reference(model)
        except InputError as error:
            return error
        except NativeFailure:  # over a limit, which says nothing of it
            pass
    return None


def called(
    request: Mapping[str, Any],
    arrays: Mapping[str, Array | FileRange],
    limits: Limits,
    process: Child | None = None,
) -> tuple[Message, Child]:
    """Return the answer of `onnx_bridge.reference.server`, and the process that gave it.

    Raises:
        InputError: the server refuses the request.
        NativeFailure, Lost: as `passes.isolation.worker.Worker.call`.
    """
    answer, owner = worker.shared().call(SERVER, request, arrays, limits=limits, process=process)
    if "error" in answer[0]:
        raise _error(answer[0]["error"])
    return answer, owner


def _sent(weight: models.Weight) -> Array | FileRange:
    elements = weight.elements
    if isinstance(elements, Span):
        elements.source.check()
        return FileRange(elements.source.fileno(), elements.offset, elements.nbytes)
    return elements.view()


def _error(described: Mapping[str, Any]) -> InputError:
    """Return the error that the server describes."""
    if "message" in described:
        unknown = described["unknown"] and UnknownOperator(**described["unknown"])
        return OnnxRuntimeError(described["message"], where=described["where"], unknown=unknown)
    return InputError(described["what"], where=described["where"], hint=described["hint"])


def _check_dtypes(sample: Mapping[str, Value]) -> None:
    """Raise InputError for arrays that ONNX has no element type for."""
    for name, value in sample.items():
        for array in value if isinstance(value, list) else [] if value is None else [value]:
            if array.dtype.kind not in "OUST":
                try:
                    ir.DataType.from_numpy(array.dtype)
                except TypeError:
                    what = f"ONNX has no element type for {array.dtype}"
                    raise InputError(what, where=f"input {name!r}") from None
