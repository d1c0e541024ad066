"""ONNX Runtime's MIGraphX provider, asked in a process of its own: sessions, what it claims, and what they compute.

On a machine with an AMD GPU it runs as it is installed. Otherwise a stub of HIP keeps the memory of the device on the
host, and a shim lets MIGraphX's target ``ref`` compute: what a session then says of claims, names and numbers is the
real provider's word, and nothing of it was run on a GPU.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (numpy knows its types by name then)
import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import MigraphxError, RuntimeNotFound
from onnx_bridge.core.native_code import build, digest, kept_folder
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.architectures import ARCHITECTURES
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.stub import LIBRARY, stub_libraries, stub_version
from onnx_bridge.migraphx.process.printed_error import PrintedError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture
from onnx_bridge.provider import environment as environments
from onnx_bridge.provider.environment import Environment
from passes.isolation import limits, value_messages
from passes.isolation.messages import Array
from passes.isolation.process import Child
from passes.isolation.worker import Lost, Worker

MIGRAPHX, CPU = "MIGraphXExecutionProvider", "CPUExecutionProvider"
_PRETENDED = ARCHITECTURES["gfx942"]
"""The architecture of the GPU that the stub of HIP pretends."""
CACHE_OPTION = "migraphx_model_cache_dir"
"""The provider's option with the folder of its programs; without the folder, no session can be created."""
CACHE_VARIABLE = "ORT_MIGRAPHX_MODEL_CACHE_PATH"
"""The variable that wins over the option."""
SECONDS = 600.0
_SERVER, _LIBRARY = "onnx_bridge.provider.server", "ONNX Runtime's MIGraphX provider"
_SHIM, _SHIM_LIBRARY = Path(__file__).parent / "migraphx_shim.cpp", "migraphx_shim.so"
_OWN_SETTINGS = "ORT_MIGRAPHX_"
"""The prefix of the variables that override a session's options."""


class ProviderError(MigraphxError):
    """ONNX Runtime refused to make a session with the provider, or failed to run it; its process is still usable.

    Attributes:
        calls: the calls of MIGraphX before it failed.
    """

    def __init__(self, what: str, calls: Calls, *, output: str) -> None:
        super().__init__(what, output=output)
        self.calls = calls


@dataclass(frozen=True)
class Calls:
    """The calls of MIGraphX's C library: how often each succeeded or failed, and the files that were loaded or saved.

    Without the shim, which logs them, there are none.
    """

    succeeded: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    loaded: tuple[Path, ...] = ()
    saved: tuple[Path, ...] = ()

    @classmethod
    def of(cls, logged: Iterable[Mapping[str, Any]]) -> Calls:
        entries = list(logged)

        def counts(failed: bool) -> dict[str, int]:
            return dict(Counter(entry["call"] for entry in entries if bool(entry["status"]) is failed))

        def files(call: str) -> tuple[Path, ...]:
            return tuple(Path(entry["file"]) for entry in entries if entry["call"] == call and not entry["status"])

        return cls(counts(False), counts(True), files("load"), files("save"))

    def __getitem__(self, name: str) -> int:
        """Return how often ``parse``, ``compile``, ``load``, ``save`` or ``run`` was called, with success or not."""
        return self.succeeded.get(name, 0) + self.failed.get(name, 0)

    def __add__(self, other: Calls) -> Calls:
        def both(one: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
            return dict(Counter(one) + Counter(more))

        files = self.loaded + other.loaded, self.saved + other.saved
        return Calls(both(self.succeeded, other.succeeded), both(self.failed, other.failed), *files)


@dataclass(frozen=True)
class PlacedNode:
    """A node of the model, and the provider that a session has given it to."""

    name: str
    domain: str
    op_type: str
    provider: str


@dataclass(frozen=True)
class SessionOptions:
    """The options of a session.

    Attributes:
        provider: the MIGraphX provider's own ("migraphx_model_cache_dir").
        entries: entries of the session's configuration.
        dims: sizes of symbolic dimensions, by name.
        optimization: ONNX Runtime's level of graph optimization: 0 for none, 99 for all, its default.
        on_cpu: whether the session is for the CPU alone, for comparison.
    """

    provider: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    optimization: int = 0
    on_cpu: bool = False


class Provider:
    """The provider of one environment, before one MIGraphX; its process starts with the first request.

    Args:
        environment: the environment; default: the first one on this machine.
        runtime: the MIGraphX; default: the one that is used otherwise, too.
        compiler: a compiler for a GPU that is not there: programs are compiled for it, and sessions cannot be run.
        architecture: the architecture that is pretended, whatever is there; default: that of the GPU, if there is one.

    Attributes:
        stubbed: whether there is no GPU: then everything is computed by ``ref`` on the CPU.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        runtime: Runtime | None = None,
        *,
        compiler: GpuCompiler | None = None,
        architecture: str | None = None,
    ) -> None:
        self.environment = environment or environments.find()
        self.stubbed = bool(compiler or architecture) or gpu_architecture() is None
        self.runtime = (runtime or runtimes.find()).by_c_library()
        self._compiler, self._pretended = compiler, ARCHITECTURES.get(architecture or "", _PRETENDED)
        if compiler is not None:
            folder = stub_libraries([*compiler.runtime.gpu_libraries, self.environment.library])
            folders = folder, *compiler.runtime.library_path[1:]
            self.runtime = replace(compiler.runtime, library_path=folders).by_c_library()
        self._worker = Worker(command=self._command, environment=self._variables(), foreign=True)
        self._dropped: list[tuple[int, int]] = []
        self._kept: weakref.WeakValueDictionary[Path, Session] = weakref.WeakValueDictionary()

    @property
    def identity(self) -> str:
        """A text that changes with the provider, its MIGraphX and what stands in for a GPU."""
        behind = f"stub-{stub_version()}-{digest([_SHIM])[:10]}" if self.stubbed else "gpu"
        return f"{self.environment.identity}-{self.runtime.identity}-{behind}"

    @property
    def note(self) -> str:
        """A sentence that says what computes."""
        where = f"MIGraphX {self.runtime.version}"
        if self.stubbed:
            return f"onnxruntime-migraphx {self.environment.version} with {where} for ref behind a stub of HIP: no GPU"
        return f"onnxruntime-migraphx {self.environment.version} with {where} on the GPU"

    def version(self) -> str:
        """Return the version of ONNX Runtime that answers; raises RuntimeNotFound if it has no such provider."""
        answer, _, _ = self._request({"do": "hello"}, {})
        return str(answer["version"])

    def launch(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        self._worker.launch(_SERVER)

    def session(self, model: Path | bytes, options: SessionOptions = SessionOptions()) -> Session:
        """Open a session; without options, the one that is kept for the file if there is one (`keep`).

        Args:
            model: a file, or a serialized model.
            options: the options of the session.

        Raises:
            ProviderError: it cannot be created.
            NativeFailure: the process has ended, or exceeded a limit.
        """
        kept = self._kept.get(model) if isinstance(model, Path) and options == SessionOptions() else None
        return kept or Session(self, model, options)

    def keep(self, session: Session, model: Path) -> None:
        """Return a session to whoever asks for one with a file, to which its model was moved, as long as it is used."""
        session.model, session.options = model, SessionOptions()  # as it is opened if the process ends
        self._kept[model] = session

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._worker.close()

    def _command(self, _python: Path, arguments: list[str]) -> list[str]:
        if not self.stubbed:
            return [str(self.environment.python), *arguments]
        return self.runtime.command(self.environment.python, arguments)

    def _variables(self) -> dict[str, str]:
        own = (_OWN_SETTINGS, "STANDIN_", "PYTHONPATH")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        if self.stubbed:
            variables |= {
                "STANDIN_STUB": str(stub_libraries([self.environment.library]) / LIBRARY),
                "GPUSTUB_DEVICE": self._pretended.described,
                "STANDIN_SHIM": str(_shim()),
                "STANDIN_REAL": str(self.runtime.library),
            }
        if self._compiler is not None:
            variables |= {**self._compiler.variables(variables, self.runtime), "STANDIN_KEEPS_TARGET": "1"}
            variables["STANDIN_STUB"] = str(self.runtime.library_path[0] / LIBRARY)
        return variables

    def _request(
        self, request: Mapping[str, Any], arrays: Mapping[str, Array], process: Child | None = None
    ) -> tuple[dict[str, Any], dict[str, Array], Child]:
        """Return the answer, its arrays and the process that gave it.

        Raises:
            RuntimeNotFound: the environment's ONNX Runtime has no such provider.
            ProviderError: ONNX Runtime refuses the request.
            NativeFailure, Lost: as `passes.isolation.worker.Worker.call`.
        """
        drop = [self._dropped.pop() for _ in range(len(self._dropped))]
        message = {**request, "drop": drop}
        (answer, results), owner = self._worker.call(
            _SERVER, message, arrays, limits=limits.current(SECONDS), library=_LIBRARY, process=process
        )
        if "lacking" in answer:
            what = f"ONNX Runtime {answer['lacking']} is imported there, which has no MIGraphX provider"
            raise RuntimeNotFound(what, where=str(self.environment.path))
        if "error" in answer:
            printed = owner.printed()
            calls = Calls.of(answer["calls"])
            by_migraphx = PrintedError.parse(printed).text if calls.failed else ""
            if request["do"] == "open" and not calls.failed:  # a crash that was caught: what it has written is unknown
                self.close()
            raise ProviderError(by_migraphx or str(answer["error"]).splitlines()[0], calls, output=printed)
        return answer, results, owner


class Session:
    """A session with the provider; opened again if its process has ended.

    Attributes:
        nodes: the nodes of the model, those of subgraphs included, with the providers that run them.
        calls: MIGraphX's calls so far.
        inputs, outputs: names, with ONNX Runtime's types and shapes.
        model: the file, or the serialized model.
        options: the options with which it is opened.
        runs: samples with their outputs, which need not be computed again.
    """

    def __init__(self, provider: Provider, model: Path | bytes, options: SessionOptions) -> None:
        self._provider, self.model, self.options = provider, model, options
        self.calls = Calls()
        self.runs: list[tuple[Mapping[str, Value], dict[str, Value]]] = []
        self._open()

    @property
    def on_provider(self) -> tuple[PlacedNode, ...]:
        """The nodes that MIGraphX runs."""
        return tuple(node for node in self.nodes if node.provider == MIGRAPHX)

    @property
    def whole(self) -> bool:
        """Return whether MIGraphX runs all nodes, and there are some."""
        return bool(self.nodes) and len(self.on_provider) == len(self.nodes)

    def run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        """Return all outputs by name.

        Raises:
            ProviderError: ONNX Runtime fails.
            NativeFailure: the process has ended, or exceeded a limit.
        """
        for known, results in self.runs:
            if known.keys() == sample.keys() and all(_equal(known[name], sample[name]) for name in known):
                return dict(results)
        bits, kinds = dict(sample), {}
        for name, value in sample.items():
            if isinstance(value, np.ndarray) and (element := _unusual(value)) is not None:
                packed_bytes = ir.tensor(value, dtype=element).tobytes()
                bits[name], kinds[name] = value_messages.from_bytes(packed_bytes), [int(element), list(value.shape)]
        (entry,), packed = value_messages.pack([bits])
        while True:
            request = {"do": "run", "session": self._number, "sample": entry, "kinds": kinds}
            try:
                answer, received, _ = self._provider._request(request, packed, self._process)
                break
            except Lost:
                self._open()
            except ProviderError as error:
                self.calls += error.calls
                raise
        self.calls += Calls.of(answer["calls"])
        (outputs,) = value_messages.unpack([answer["outputs"]], received)
        for name, (element, shape) in answer["elements"].items():
            outputs[name] = _typed(outputs[name], ir.DataType(element), shape)
        return outputs

    def _open(self) -> None:
        options = self.options
        providers = [] if options.on_cpu else [[MIGRAPHX, dict(options.provider)]]
        request: dict[str, Any] = {
            "do": "open",
            "entries": dict(options.entries),
            "dims": dict(options.dims),
            "optimization": options.optimization,
            "severity": 3,
            "providers": [*providers, [CPU, {}]],
        }
        arrays: dict[str, Array] = {}
        if isinstance(self.model, bytes):
            arrays["model"] = value_messages.from_bytes(self.model)
        else:
            request["path"] = str(self.model.absolute())
        answer, _, self._process = self._provider._request(request, arrays)
        self._number: int = answer["session"]
        weakref.finalize(self, self._provider._dropped.append, (self._process.pid, self._number))
        self.calls += Calls.of(answer["calls"])
        self.nodes = tuple(
            PlacedNode(name, domain, op_type, provider)
            for provider, nodes in answer["assigned"]
            for name, domain, op_type in nodes
        )
        self.inputs: list[Sequence[Any]] = answer["inputs"]
        self.outputs: list[Sequence[Any]] = answer["outputs"]


def shared(environment: Environment | None = None, runtime: Runtime | None = None) -> Provider:
    """Return the provider of this process for an environment and a runtime; defaults are those of `Provider`."""
    return _shared(environment or environments.find(), runtime or runtimes.find())


@functools.cache
def _shared(environment: Environment, runtime: Runtime) -> Provider:
    return Provider(environment, runtime)


os.register_at_fork(after_in_child=_shared.cache_clear)


def _equal(value: Value, other: Value) -> bool:
    """Return whether both are arrays of the same bits."""
    if not isinstance(value, np.ndarray) or not isinstance(other, np.ndarray) or value.dtype.hasobject:
        return False
    return (value.dtype, value.shape) == (other.dtype, other.shape) and value.tobytes() == other.tobytes()


def _unusual(array: Array) -> ir.DataType | None:
    """Return the element type of an array if numpy does not know it by itself."""
    if array.dtype.kind in "OUST" or hasattr(np, array.dtype.name):
        return None
    return ir.DataType.from_numpy(array.dtype)


def _typed(packed: Value, element: ir.DataType, shape: Sequence[int]) -> Array:
    assert isinstance(packed, np.ndarray)
    if element.bitwidth < 8:
        return np.asarray(ir.PackedTensor(packed, element, shape=ir.Shape(shape)).numpy())
    return packed.view(element.numpy()).reshape(shape)


def _shim() -> Path:
    """Return the shim in front of MIGraphX's C library, which is built if needed.

    Raises:
        RuntimeNotFound, RuntimeFailure: it cannot be built.
    """

    def fill(folder: Path) -> None:
        build(_SHIM, folder / _SHIM_LIBRARY, ["-ldl"], purpose="ONNX Runtime's provider without a GPU")

    return kept_folder("provider", digest([_SHIM])[:10], fill) / _SHIM_LIBRARY
