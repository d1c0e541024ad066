"""The backend ``onnx_bridge`` of `torch.compile`.

    torch.compile(model, backend="onnx_bridge", options={"strict": True})

Each graph that dynamo finds is lowered when it is first called, with the tensors of that call. Open dimensions are
padded to the next power of two, or to the given buckets, so that few programs serve many sizes. The graph itself is run
to check that padding is harmless; a dimension whose padding changes an output is not padded. A graph that cannot be
lowered runs in PyTorch, as without the backend, and one warning says why.

In-place writes to weights make new programs, by PyTorch's version counters. Writes that these do not count, through
``.data`` or NumPy, or to tensors of inference mode, are not noticed: call ``torch.compiler.reset()`` after them. A
graph holds the memory of the weights that its programs were made of until it is called with others, or is dropped
itself; otherwise other weights could be in the same place.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.requests.lowering import BackendRequest
from onnx_bridge.torch.compile.compile_graphs import GraphCall, Outcome, Signature, is_fake, is_tensor
from onnx_bridge.torch.lowering import padding
from onnx_bridge.torch.lowering.gradients import without_gradients
from onnx_bridge.torch.lowering.program_cache import obtain_programs
from onnx_bridge.torch.lowering.programs import Programs
from onnx_bridge.torch.modules.modules import write_count


def compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Return the function to call instead of a graph from dynamo; `torch.compile` calls this for each graph.

    ``example_inputs`` are not used: graphs are lowered with the tensors of their first call.

    Args:
        options: see `BackendRequest`.

    Raises:
        InputError: an option is wrong.
    """
    return CompiledGraph(graph, BackendRequest.of(options or {}))


@dataclass(frozen=True)
class _Plan:
    """The way to run the graph for arguments of certain shapes.

    Attributes:
        outcome: the values that are returned.
        programs: the programs that compute them; None if nothing is computed.
        shapes: the shape that each input is padded to, by name.
    """

    outcome: Outcome
    programs: Programs | None
    shapes: Mapping[str, tuple[int, ...]]


class CompiledGraph:
    """A graph from dynamo, lowered when it is called; ``reason`` says why it runs in PyTorch, if it does."""

    def __init__(self, graph: fx.GraphModule, options: BackendRequest) -> None:
        self._graph, self._options = graph, options
        self._signature = Signature.of(graph)
        self._lock = threading.RLock()
        self._unpadded: set[str] = set()
        self._reset()
        autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self.reason = "autocast is on, which ONNX graphs do not have" if autocast else None
        if self.reason is not None:
            self._fall_back(InputError(self.reason))

    def __call__(self, *given: Any) -> Any:
        """Return the result of the graph; raises BridgeError if it cannot be lowered, and ``strict`` is set."""
        if self.reason is not None or is_fake(given):
            return self._graph(*given)
        try:
            args = self._signature.with_numbers(given)
            with self._lock:
                plan = self._plan(args)
            return self._run(plan, args)
        except BridgeError as error:
            self._fall_back(error)
        except Exception as error:  # raised while tracing; PyTorch can still run the graph
            self._fall_back(InputError(f"{type(error).__name__}: {error}"), error)
        return self._graph(*given)

    @property
    def programs(self) -> tuple[Programs, ...]:
        return tuple(self._programs.values())

    def _fall_back(self, error: BridgeError, cause: Exception | None = None) -> None:
        if self._options.strict:
            raise error from cause
        self.reason = str(error)
        nodes = sum(node.op in ("call_function", "call_method", "call_module") for node in self._graph.graph.nodes)
        what = f"a graph of {nodes} operations runs in PyTorch, since it cannot be lowered: {self.reason}"
        warnings.warn(f"onnx_bridge: {what}", stacklevel=3)

    def _reset(self) -> None:
        self._plans: dict[Any, _Plan] = {}
        self._programs: dict[Any, Programs] = {}
        self._weights: tuple[Any, ...] = ()
        self._held: list[torch.Tensor] = []

    def _plan(self, args: Sequence[Any]) -> _Plan:
        owned = self._signature.owned
        weights = tuple(map(_state, held := [args[index] for index in owned]))
        if weights != self._weights:  # written to, or replaced
            self._reset()
            self._weights, self._held = weights, [tensor.detach() for tensor in held]
        free = [value for index, value in enumerate(args) if index not in owned]
        key = tuple((v.dtype, v.shape, v.device) if is_tensor(v) else _number(v) for v in free)
        if key not in self._plans:
            # the trial runs must not advance the user's random state
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=()):
                self._plans[key] = self._new_plan(GraphCall(self._graph, self._signature, args))
        return self._plans[key]

    def _new_plan(self, call: GraphCall) -> _Plan:
        if not call.outcome.computed:
            return _Plan(call.outcome, None, {})
        sizes = self._padded_sizes(call)
        shapes, constants = call.shapes(sizes), call.constants(sizes)
        dtypes = tuple(tensor.dtype for tensor in call.inputs.values())
        key = tuple(shapes.items()), dtypes, tuple((index, _number(value)) for index, value in constants.items())
        if key not in self._programs:
            if len(self._programs) >= self._options.programs:
                what = f"the graph was called with too many sizes: it has {len(self._programs)} programs"
                raise InputError(what, where="the graph", hint="raise the option 'programs', or mask padded dimensions")
            inputs = {name: _padded(tensor, shapes[name]).clone() for name, tensor in call.inputs.items()}
            obtained = obtain_programs(call.module(sizes), (), inputs, self._options.lowering)
            self._programs[key] = obtained.programs
        return _Plan(call.outcome, self._programs[key], shapes)

    def _padded_sizes(self, call: GraphCall) -> dict[str, int]:
        """Return the sizes to pad to: larger only for dimensions whose padding changes no output."""
        sizes = call.sizes
        buckets = {symbol: self._options.bucket(size) for symbol, size in sizes.items()}
        larger = {s: size for s, size in buckets.items() if size != sizes[s] and s not in self._unpadded}
        if not larger or not call.is_changed_by({**sizes, **larger}):
            return {**sizes, **larger}
        harmless = dict(sizes)
        for symbol, size in larger.items():  # one after the other, since a mask may depend on several
            if call.is_changed_by({**harmless, symbol: size}):
                self._unpadded.add(symbol)
            else:
                harmless[symbol] = size
        return harmless

    def _run(self, plan: _Plan, args: Sequence[Any]) -> Any:
        computed: dict[str, torch.Tensor] = {}
        if plan.programs is not None:
            given = dict(zip(self._signature.names, args, strict=True))
            inputs = {name: _real(_padded(given[name], shape)) for name, shape in plan.shapes.items()}
            outputs = plan.programs.run(inputs)
            infos = plan.programs.bundle.outputs
            for (index, value), info in zip(plan.outcome.computed.items(), infos, strict=True):
                tensor = torch.view_as_complex(outputs[info.name]) if value.is_complex else outputs[info.name]
                computed[str(index)] = padding.cut(tensor, value.shape, {}, {})
        tensors = without_gradients(computed, filter(is_tensor, args))
        return plan.outcome.assemble({int(index): tensor for index, tensor in tensors.items()}, args)


def _state(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return what differs from another weight, and after a write, as long as the memory of the weight is held."""
    return weight.data_ptr(), weight.dtype, weight.shape, weight.stride(), write_count(weight)


def _number(value: Any) -> Any:
    """Return a constant as a part of a key, in which 0.0 is not -0.0, 1 is not True, and NaN is NaN."""
    return (type(value), repr(value)) if isinstance(value, (int, float, complex, np.generic)) else value


def _padded(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    widths = [(0, size - have) for have, size in zip(tensor.shape, shape, strict=True)]
    return padding.padded_by(tensor.detach(), widths)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as a real one with a last dimension of 2, and another tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
