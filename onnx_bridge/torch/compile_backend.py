"""The backend ``onnx_bridge`` of `torch.compile`.

    torch.compile(model, backend="onnx_bridge", options={"strict": True})

Each graph that dynamo finds is lowered when it is first called, with the very tensors of that call. Open sizes are
padded to the next power of two, or to the given buckets, so that few sizes make few programs; for every new size that
padding changes nothing is tried with the graph itself, and a size for which it would is taken as it is. A graph that
cannot be lowered runs in PyTorch, as it would without the backend, and one warning says why.

Weights that are written into make new programs, by PyTorch's own count of writes. What it does not count, by way of
``.data`` or of numpy, is not seen: call ``torch.compiler.reset()`` afterwards.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch.utils import _pytree

from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.torch.compile_graphs import (
    Argument,
    Bound,
    Computed,
    Fixed,
    Outcome,
    Repeated,
    Signature,
    foresee,
    is_fake,
)
from onnx_bridge.torch.lowering import padding
from onnx_bridge.torch.lowering.build_programs import Options, make
from onnx_bridge.torch.lowering.gradients import without_gradients
from onnx_bridge.torch.lowering.programs import Programs


@dataclass(frozen=True)
class BackendOptions:
    """What ``options`` may say.

    Attributes:
        strict: whether a graph that cannot be lowered is an error.
        buckets: the sizes that open dimensions are padded to; None are the powers of two.
        programs: how many programs a graph may have at most.
        target: as for `onnx_bridge.torch.lower`, like all that follow.
        exporter: of torch.onnx.
        opset: of the ONNX model.
        host: whether nodes that MIGraphX cannot run may run on ONNX Runtime.
        cache: whether programs are kept on disk, or the folder that they are kept in.
        timeout: seconds.
        memory: GiB.
        runtime: which MIGraphX.
        in_process: whether programs run in this process, on tensors of the GPU.
    """

    strict: bool = False
    buckets: Sequence[int] | None = None
    programs: int = 8
    target: Literal["auto", "ref", "gpu"] = "auto"
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    opset: int | None = None
    host: bool = True
    cache: bool | str | os.PathLike[str] = True
    timeout: float | None = None
    memory: float | None = None
    runtime: str | None = None
    in_process: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """From the argument of `torch.compile`.

        Raises:
            InputError: there is no such option, or its value is wrong.
        """
        known = [each.name for each in dataclasses.fields(cls)]
        for name in options or {}:
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(known)}"
                raise InputError("there is no such option", where=f"option {name!r}", hint=hint)
        made = cls(**(options or {}))
        if made.buckets is not None and (not made.buckets or min(made.buckets) < 1):
            raise InputError(
                f"its sizes are {list(made.buckets)}", where="option 'buckets'", hint="give some above zero"
            )
        if made.programs < 1:
            raise InputError("a graph needs at least one program", where="option 'programs'")
        return made

    def making(self) -> Options:
        """The part that says how programs are made."""
        same = {each.name for each in dataclasses.fields(Options)} - {"precision", "before"}
        return Options(**{name: getattr(self, name) for name in same})

    def bucket(self, size: int) -> int:
        """What a size is padded to; sizes beyond all buckets stay."""
        if self.buckets is None:
            return 1 << max(size - 1, 0).bit_length() if size else 0
        return min((each for each in self.buckets if each >= size), default=size)


def compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """What `torch.compile` calls for each graph.

    Args:
        graph: of dynamo.
        example_inputs: not used: graphs are lowered with the tensors of their first call.
        options: see `BackendOptions`.

    Returns:
        What is called in the graph's stead.

    Raises:
        InputError: an option is wrong.
    """
    return CompiledGraph(graph, BackendOptions.of(options))


@dataclass(frozen=True)
class _Plan:
    """What is done for arguments of certain shapes.

    Attributes:
        outcome: what is returned.
        programs: what computes it; None where nothing needs computing.
        shapes: what each input is padded to, by position.
        names: the outputs of the programs by the position of what they are.
    """

    outcome: Outcome
    programs: Programs | None
    shapes: Mapping[int, tuple[int, ...]]
    names: Mapping[int, str]


class CompiledGraph:
    """A graph of dynamo, lowered when it is called.

    Attributes:
        reason: why it runs in PyTorch; None where it does not, or is not known to.
        programs: those made so far.
    """

    def __init__(self, graph: fx.GraphModule, options: BackendOptions) -> None:
        self._graph, self._options = graph, options
        self._signature = Signature.of(graph)
        self._lock = threading.RLock()
        self._rigid: set[str] = set()
        self._forget()
        autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self.reason = "autocast is on, which no ONNX graph knows" if autocast else None
        if self.reason is not None:
            self._give_up(InputError(self.reason))

    def __call__(self, *given: Any) -> Any:
        """What the graph returns.

        Raises:
            BridgeError: it cannot be lowered, and must be (``strict``).
        """
        if self.reason is not None or is_fake(given):
            return self._graph(*given)
        try:
            args = self._signature.settled(given)
            with self._lock:
                plan = self._plan(args)
            return self._run(plan, args)
        except BridgeError as error:
            self._give_up(error)
        except Exception as error:  # whatever a tracer raises, the graph itself may still run
            self._give_up(InputError(f"{type(error).__name__}: {error}"), error)
        return self._graph(*given)

    @property
    def programs(self) -> tuple[Programs, ...]:
        """Those made so far."""
        return tuple(self._programs.values())

    def _give_up(self, error: BridgeError, cause: Exception | None = None) -> None:
        if self._options.strict:
            raise error from cause
        self.reason = str(error)
        nodes = sum(node.op in ("call_function", "call_method", "call_module") for node in self._graph.graph.nodes)
        said = f"a graph of {nodes} operations runs in PyTorch, since it cannot be lowered: {self.reason}"
        warnings.warn(f"onnx_bridge: {said}", stacklevel=3)

    def _forget(self) -> None:
        self._plans: dict[Any, _Plan] = {}
        self._programs: dict[Any, Programs] = {}
        self._names: dict[Any, dict[int, str]] = {}
        self._stamp: tuple[Any, ...] = ()

    def _plan(self, args: Sequence[Any]) -> _Plan:
        stamp = tuple((each.data_ptr(), _version(each)) for each in (args[index] for index in self._signature.owned))
        if stamp != self._stamp:  # weights were written to, or are others
            self._forget()
            self._stamp = stamp
        free = [each for index, each in enumerate(args) if index not in self._signature.owned]
        key = tuple((each.dtype, each.shape, each.device) if isinstance(each, torch.Tensor) else each for each in free)
        if key not in self._plans:
            # what is tried must not draw the random numbers that the graph itself may draw
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=()):
                self._plans[key] = self._made(args)
        return self._plans[key]

    def _made(self, args: Sequence[Any]) -> _Plan:
        signature = self._signature
        outcome = foresee(self._graph, args)
        wanted = [index for index, each in enumerate(outcome.outputs) if isinstance(each, Computed)]
        if not wanted:
            return _Plan(outcome, None, {}, {})
        given = {i: args[i] for i in range(len(args)) if i not in signature.owned and isinstance(args[i], torch.Tensor)}
        sizes = {s: int(given[i].shape[axis]) for i, axes in signature.open.items() for axis, s in axes.items()}
        large = self._enlarged(args, given, outcome, wanted, sizes)
        shapes = {index: self._shape(index, each, large) for index, each in given.items()}
        constants = self._constants(args, large)
        key = tuple(shapes.items()), tuple(each.dtype for each in given.values()), tuple(constants.items())
        if key not in self._programs:
            if len(self._programs) >= self._options.programs:
                what = f"it was called with so many sizes that it has {len(self._programs)} programs"
                raise InputError(what, where="the graph", hint="raise the option 'programs', or mask what is padded")
            module = self._bound(args, constants, wanted)
            inputs = {signature.names[i]: padding.padded(each.detach(), shapes[i]).clone() for i, each in given.items()}
            made = make(module, (), inputs, {}, {}, self._options.making(), lambda _stage: None)
            self._programs[key] = made.programs
            self._names[key] = dict(zip(wanted, (port.name for port in made.programs.entry.outputs), strict=True))
        return _Plan(outcome, self._programs[key], shapes, self._names[key])

    def _enlarged(
        self,
        args: Sequence[Any],
        given: Mapping[int, torch.Tensor],
        outcome: Outcome,
        wanted: Sequence[int],
        sizes: Mapping[str, int],
    ) -> dict[str, int]:
        """The sizes to pad to: larger for those dimensions alone whose padding changes nothing."""
        goal = {symbol: self._options.bucket(size) for symbol, size in sizes.items() if symbol not in self._rigid}
        goal = {symbol: size for symbol, size in goal.items() if size != sizes[symbol]}
        if not goal or not self._disturbed(args, given, outcome, wanted, {**sizes, **goal}):
            return {**sizes, **goal}
        good: dict[str, int] = {}
        for symbol, size in goal.items():  # one after the other, since masks may go with several
            if self._disturbed(args, given, outcome, wanted, {**sizes, **good, symbol: size}):
                self._rigid.add(symbol)
            else:
                good[symbol] = size
        return {**sizes, **good}

    def _disturbed(
        self,
        args: Sequence[Any],
        given: Mapping[int, torch.Tensor],
        outcome: Outcome,
        wanted: Sequence[int],
        large: Mapping[str, int],
    ) -> bool:
        names = self._signature.names
        dims = {names[index]: self._dims(index, each) for index, each in given.items()}
        shapes = {str(index): outcome.outputs[index].shape for index in wanted}  # type: ignore[union-attr]
        small = {symbol: args[i] for i, symbol in self._signature.symbols.items()}
        small |= {s: int(given[i].shape[axis]) for i, axes in self._signature.open.items() for axis, s in axes.items()}

        def run(tensors: padding.Tensors, sizes: padding.Sizes) -> dict[str, torch.Tensor]:
            module = self._bound(args, self._constants(args, sizes), wanted)
            found = module(**{name: each.clone() for name, each in tensors.items()})
            return {str(index): each for index, each in zip(wanted, found, strict=True)}

        tensors = {names[index]: each.detach().clone() for index, each in given.items()}
        try:
            return padding.disturbed(run, tensors, dims, shapes.__getitem__, small, large) is not None
        except Exception:  # the graph does not even run with such sizes
            return True

    def _bound(self, args: Sequence[Any], constants: Mapping[int, Any], wanted: Sequence[int]) -> Bound:
        owned = {index: args[index] for index in sorted(self._signature.owned)}
        return Bound(self._graph, self._signature.names, owned, constants, wanted)

    def _constants(self, args: Sequence[Any], sizes: Mapping[str, int]) -> dict[int, Any]:
        """The arguments that are no tensors, for these sizes."""
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
            inputs = {names[i]: _real(padding.padded(args[i].detach(), shape)) for i, shape in plan.shapes.items()}
            found = plan.programs.run(inputs)
        leaves: dict[int, Any] = {}
        for index, each in enumerate(plan.outcome.outputs):
            match each:
                case Computed(shape, is_complex):
                    tensor = found[plan.names[index]]
                    leaves[index] = padding.cut(torch.view_as_complex(tensor) if is_complex else tensor, shape)
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


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as programs take it: a complex one as a real one with a last dimension of 2."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _tensors(args: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (each for each in args if isinstance(each, torch.Tensor))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
