"""The backend ``onnx_bridge`` of `torch.compile`.

    torch.compile(model, backend="onnx_bridge", options={"strict": True})

Each graph that dynamo finds is lowered when it is first called, with the tensors of that call. Open dimensions are
padded to the next power of two, or to the given buckets, so that few programs serve many sizes. The graph itself is run
to check that padding is harmless; a dimension whose padding changes an output is not padded. A graph that cannot be
lowered runs in PyTorch, as without the backend, and one warning says why.

In-place writes to weights make new programs, by PyTorch's version counters. Writes that these do not count, through
``.data`` or NumPy, are not noticed: call ``torch.compiler.reset()`` after them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree

from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.torch.compile.compile_graphs import (
    Argument,
    Bound,
    Computed,
    Fixed,
    Outcome,
    Repeated,
    Signature,
    is_fake,
    predict_outcome,
)
from onnx_bridge.torch.compile.compile_options import BackendOptions
from onnx_bridge.torch.lowering import padding
from onnx_bridge.torch.lowering.gradients import without_gradients
from onnx_bridge.torch.lowering.program_cache import obtain_programs
from onnx_bridge.torch.lowering.programs import Programs
from onnx_bridge.torch.modules.modules import write_count


def compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Compile a graph; `torch.compile` calls this for each.

    Args:
        graph: from dynamo.
        example_inputs: not used: graphs are lowered with the tensors of their first call.
        options: see `BackendOptions`.

    Returns:
        The function that is called instead of the graph.

    Raises:
        InputError: an option is wrong.
    """
    return CompiledGraph(graph, BackendOptions.of(options))


@dataclass(frozen=True)
class _Plan:
    """How to run the graph for arguments of certain shapes.

    Attributes:
        outcome: what is returned.
        programs: compute it; None if nothing is computed.
        shapes: the shape that each input is padded to, by position.
        names: the names of the programs' outputs, by the position of the returned value.
    """

    outcome: Outcome
    programs: Programs | None
    shapes: Mapping[int, tuple[int, ...]]
    names: Mapping[int, str]


@dataclass(frozen=True)
class _GraphCall:
    """A call of a graph that is being lowered.

    Attributes:
        args: all arguments.
        given: the tensors among them that are not weights, by position.
        outcome: what is returned.
        wanted: the positions of the returned values that are computed.
        sizes: of open dimensions.
    """

    args: Sequence[Any]
    given: Mapping[int, torch.Tensor]
    outcome: Outcome
    wanted: Sequence[int]
    sizes: dict[str, int]


class CompiledGraph:
    """A graph from dynamo, lowered when it is called.

    Attributes:
        reason: why it runs in PyTorch; None if it does not.
    """

    def __init__(self, graph: fx.GraphModule, options: BackendOptions) -> None:
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
        """The result of the graph.

        Raises:
            BridgeError: it cannot be lowered, and ``strict`` is set.
        """
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
        """The programs that were built so far."""
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
        self._names: dict[Any, dict[int, str]] = {}
        self._weights: tuple[Any, ...] = ()

    def _plan(self, args: Sequence[Any]) -> _Plan:
        weights = tuple(
            (each.data_ptr(), write_count(each)) for each in (args[index] for index in self._signature.owned)
        )
        if weights != self._weights:  # written to, or replaced
            self._reset()
            self._weights = weights
        free = [each for index, each in enumerate(args) if index not in self._signature.owned]
        key = tuple((each.dtype, each.shape, each.device) if isinstance(each, torch.Tensor) else each for each in free)
        if key not in self._plans:
            # the trial runs must not advance the user's random state
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=()):
                self._plans[key] = self._new_plan(args)
        return self._plans[key]

    def _new_plan(self, args: Sequence[Any]) -> _Plan:
        signature = self._signature
        outcome = predict_outcome(self._graph, args)
        wanted = [index for index, each in enumerate(outcome.outputs) if isinstance(each, Computed)]
        if not wanted:
            return _Plan(outcome, None, {}, {})
        given = {i: args[i] for i in range(len(args)) if i not in signature.owned and isinstance(args[i], torch.Tensor)}
        large = self._padded_sizes(_GraphCall(args, given, outcome, wanted, self._sizes(given)))
        shapes = {index: self._shape(index, each, large) for index, each in given.items()}
        constants = self._constants(args, large)
        key = tuple(shapes.items()), tuple(each.dtype for each in given.values()), tuple(constants.items())
        if key not in self._programs:
            if len(self._programs) >= self._options.programs:
                what = f"it was called with too many sizes: it has {len(self._programs)} programs"
                raise InputError(what, where="the graph", hint="raise the option 'programs', or mask padded dimensions")
            module = self._bound(args, constants, wanted)
            inputs = {signature.names[i]: _padded(each, shapes[i]).clone() for i, each in given.items()}
            programs = obtain_programs(module, (), inputs, self._options.request()).programs
            self._programs[key] = programs
            self._names[key] = dict(zip(wanted, (info.name for info in programs.bundle.outputs), strict=True))
        return _Plan(outcome, self._programs[key], shapes, self._names[key])

    def _sizes(self, given: Mapping[int, torch.Tensor]) -> dict[str, int]:
        """The sizes of open dimensions."""
        open_ = self._signature.open.items()
        return {symbol: int(given[i].shape[axis]) for i, axes in open_ for axis, symbol in axes.items()}

    def _padded_sizes(self, call: _GraphCall) -> dict[str, int]:
        """The sizes to pad to: larger only for dimensions whose padding changes no output."""
        sizes = call.sizes
        goal = {symbol: self._options.bucket(size) for symbol, size in sizes.items() if symbol not in self._unpadded}
        goal = {symbol: size for symbol, size in goal.items() if size != sizes[symbol]}
        if not goal or not self._changes_output(call, {**sizes, **goal}):
            return {**sizes, **goal}
        harmless: dict[str, int] = {}
        for symbol, size in goal.items():  # one after the other, since a mask may depend on several
            if self._changes_output(call, {**sizes, **harmless, symbol: size}):
                self._unpadded.add(symbol)
            else:
                harmless[symbol] = size
        return {**sizes, **harmless}

    def _changes_output(self, call: _GraphCall, large: Mapping[str, int]) -> bool:
        """Whether padding to these sizes changes an output."""
        names, args = self._signature.names, call.args
        dims = {names[index]: self._dims(index, each) for index, each in call.given.items()}
        dims |= {str(index): call.outcome.outputs[index].shape for index in call.wanted}  # type: ignore[union-attr]
        small = {symbol: args[i] for i, symbol in self._signature.symbols.items()} | call.sizes

        def run(tensors: padding.Tensors, sizes: padding.Sizes) -> dict[str, torch.Tensor]:
            module = self._bound(args, self._constants(args, sizes), call.wanted)
            found = module(**{name: each.clone() for name, each in tensors.items()})
            return {str(index): each for index, each in zip(call.wanted, found, strict=True)}

        tensors = {names[index]: each.detach().clone() for index, each in call.given.items()}
        try:
            return padding.changed_output(run, tensors, dims, small, large) is not None
        except Exception:  # the graph does not run with such sizes
            return True

    def _bound(self, args: Sequence[Any], constants: Mapping[int, Any], wanted: Sequence[int]) -> Bound:
        owned = {index: args[index] for index in sorted(self._signature.owned)}
        return Bound(self._graph, self._signature.names, owned, constants, wanted)

    def _constants(self, args: Sequence[Any], sizes: Mapping[str, int]) -> dict[int, Any]:
        """The arguments that are not tensors, for these sizes."""
        symbols = self._signature.symbols
        found = {index: each for index, each in enumerate(args) if not isinstance(each, torch.Tensor)}
        return {index: sizes[symbols[index]] if index in symbols else each for index, each in found.items()}

    def _dims(self, index: int, tensor: torch.Tensor) -> padding.Dims:
        axes = self._signature.open.get(index, {})
        return tuple(axes.get(axis, size) for axis, size in enumerate(tensor.shape))

    def _shape(self, index: int, tensor: torch.Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
        axes = self._signature.open.get(index, {})
        return tuple(sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(tensor.shape))

    def _run(self, plan: _Plan, args: Sequence[Any]) -> Any:
        found: dict[str, torch.Tensor] = {}
        if plan.programs is not None:
            names = self._signature.names
            inputs = {names[i]: _real(_padded(args[i], shape)) for i, shape in plan.shapes.items()}
            found = plan.programs.run(inputs)
        leaves: dict[int, Any] = {}
        for index, each in enumerate(plan.outcome.outputs):
            match each:
                case Computed(shape, is_complex):
                    tensor = found[plan.names[index]]
                    leaves[index] = padding.cut(torch.view_as_complex(tensor) if is_complex else tensor, shape, {}, {})
                case Argument(position):
                    leaves[index] = args[position]
                case Fixed(value):
                    leaves[index] = value
        computed = {str(i): leaves[i] for i, each in enumerate(plan.outcome.outputs) if isinstance(each, Computed)}
        for name, tensor in without_gradients(computed, _tensors(args)).items():
            leaves[int(name)] = tensor
        for index, each in enumerate(plan.outcome.outputs):
            if isinstance(each, Repeated):
                leaves[index] = leaves[each.position]
        return _pytree.tree_unflatten([leaves[index] for index in sorted(leaves)], plan.outcome.spec)


def _padded(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    widths = [(0, size - have) for have, size in zip(tensor.shape, shape, strict=True)]
    return padding.padded_by(tensor.detach(), widths)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a real one with a last dimension of 2; others unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _tensors(args: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (each for each in args if isinstance(each, torch.Tensor))
