"""The sizes of a conversion that nobody chose: derived from the model (`passes.shapes.open_sizes`), otherwise 1.

A default that is too small is an error that names every open size: inference gives a result no elements or fewer, or
ONNX Runtime does not run the model. ONNX Runtime's refusal counts if larger sizes run, or if the node that fails takes
or refuses operands by their sizes alone; otherwise the generated values may be to blame, which is a note. If the
symbolic model also fails, its sizes are not the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, Reason
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.conversion import CleanRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.roles import required_inputs
from passes.graphs.cost import estimate
from passes.probing.partition import can_cross
from passes.rewriting.base import Context
from passes.shapes.open_sizes import OpenDims, OpenSizes

_LARGER = (2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sizes that are tried if the default is too small."""
_TRIED = (8, 64, 256)
"""The sizes that ONNX Runtime is asked about."""
_EXAMPLE = 4
"""The size in an example of an option."""
_MOST_WORK = 10_000_000_000
"""Multiply-adds of a model that is run to see whether it runs, a few seconds."""
_ARITHMETIC = "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Or Pow Sub Where Xor"
_PRODUCTS = "Conv ConvInteger ConvTranspose Einsum Gemm GRU LSTM MatMul MatMulInteger QLinearConv QLinearMatMul RNN"
_OTHERS = "AveragePool BatchNormalization Concat InstanceNormalization LayerNormalization MaxPool Split Squeeze"
BY_SIZES_ALONE = frozenset(f"{_ARITHMETIC} {_PRODUCTS} {_OTHERS}".split())
"""Operators for which the values of their operands do not matter to whether they run."""


class OpenSizesError(InputError):
    """The model does not work with the sizes that nobody chose.

    Attributes:
        sizes: the sizes of all open dimensions, by name; a dimension without a name is ``input[axis]``.
        too_small: the names of dimensions that are known to be too small.
        node: the node that they are too small for; None if it is unknown.
        enough: a size of these dimensions with which the model works; None if it is unknown.
    """

    page = "start/first-model.md#several-sizes"

    def __init__(
        self, what: str, sizes: OpenSizes, too_small: Iterable[str], *, node: str | None, enough: int | None
    ) -> None:
        self.sizes, self.too_small, self.node, self.enough = sizes.all, tuple(too_small), node, enough
        example = {**sizes.default, **dict.fromkeys(self.too_small or sizes.default, enough or _EXAMPLE)}
        hint = f"choose {options(example)}" + ("" if enough is None else f"; {enough} is enough")
        super().__init__(f"{what}; nobody chose {_listed(sizes)}", hint=hint)
        self.details = {"sizes": self.sizes, "too_small": self.too_small, "node": node, "enough": enough}


@dataclass(frozen=True)
class ChosenSizes:
    """The sizes of the open dimensions of a model, which is not changed; ``request`` is as it was given."""

    model: ir.Model
    request: CleanRequest
    dims: OpenDims
    sizes: OpenSizes

    @classmethod
    def of(cls, model: ir.Model, request: CleanRequest) -> ChosenSizes:
        """Choose the sizes that a request leaves open; raises OpenSizesError if inference finds them too small."""
        dims = OpenDims(model, request.dims, request.shapes, request.freeze)
        chosen = cls(model.clone() if dims.names else model, request, dims, dims.sizes(request.default_dim or 1))
        if dims.names and (too_small := dims.too_small(chosen.sizes.all)) is not None:
            node = too_small.node
            guilty = [name for name in chosen._scalable if chosen._is_guilty(name, node)] or chosen._scalable
            enough = chosen._first(_LARGER, lambda sizes: dims.too_small(sizes.all) is None)
            name = str(node.name or node.outputs[0].name)
            what = f"{chosen._said(guilty)}, which is too small for {node.op_type} {name}"
            raise OpenSizesError(what, chosen.sizes, guilty, node=name, enough=enough)
        return chosen

    @property
    def applied(self) -> CleanRequest:
        """The request, with these sizes."""
        return self._applied(self.sizes)

    @property
    def notes(self) -> list[str]:
        """Sentences for the user."""
        notes = []
        if default := self.sizes.default:
            how = f"choose with {options(dict.fromkeys(default, _EXAMPLE))}"
            notes.append(f"open dimensions got the size {self.request.default_dim}: {', '.join(default)}; {how}")
        if self.sizes.derived:
            notes.append(f"open dimensions that follow from the model: {_with_sizes(self.sizes.derived)}")
        return notes

    def check(self, model: ir.Model) -> list[str]:
        """Run the sized model on ONNX Runtime, if this is quick, and return notes; raises OpenSizesError."""
        error = refusal(model) if self.sizes.default else None
        if error is None or self._fails_whatever_the_sizes():
            return []
        enough = self._first(_TRIED, lambda sizes: _runs(self._resized(sizes)))
        if enough is None and error.operator not in BY_SIZES_ALONE:
            return [f"ONNX Runtime does not run the model with the sizes {_with_sizes(self.sizes.all)}: {error.what}"]
        if enough is None:
            raise OpenSizesError(f"the model does not run: {error.what}", self.sizes, (), node=error.node, enough=None)
        what = f"{self._said(self._scalable)}, which is too small: {error.what}"
        raise OpenSizesError(what, self.sizes, self._scalable, node=error.node, enough=enough)

    def _fails_whatever_the_sizes(self) -> bool:
        """Return whether ONNX Runtime's inference already refuses the model with open sizes."""
        try:
            Reference(self.model)
        except BridgeError as error:
            return isinstance(error, OnnxRuntimeError)
        return False

    def _said(self, names: Sequence[str]) -> str:
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {self.request.default_dim}"

    @property
    def _scalable(self) -> list[str]:
        """The dimensions with the default size that may have to be larger: the batch only if there is no other."""
        batch = self.dims.batch_names()
        return [name for name in self.sizes.default if name not in batch] or list(self.sizes.default)

    def _first(self, candidates: Iterable[int], works: Callable[[OpenSizes], bool]) -> int | None:
        """Return the first size of the dimensions that may be larger with which the model works."""
        default = self.request.default_dim or 1
        for size in candidates:
            if works(self.dims.sizes(default, dict.fromkeys(self._scalable, size))):
                return size
        return None

    def _is_guilty(self, name: str, node: ir.Node) -> bool:
        """Return whether another size of one dimension changes the size of a result that is too small."""
        after = self.dims.too_small({**self.sizes.all, name: _LARGER[-1]})
        before = self.dims.too_small(self.sizes.all)
        return after is None or after.node is not node or (before is not None and after.shape != before.shape)

    def _applied(self, sizes: OpenSizes) -> CleanRequest:
        shapes = self.dims.shapes_of_unnamed(sizes.all)
        named = {name: size for name, size in sizes.all.items() if name in self.dims.symbols}
        return replace(self.request, dims={**self.request.dims, **named}, shapes={**self.request.shapes, **shapes})

    def _resized(self, sizes: OpenSizes) -> ir.Model:
        model = self.model.clone()
        freezing(self._applied(sizes)).run(model, Context())
        return model


def options(sizes: Mapping[str, int]) -> str:
    """Return the options that give sizes to open dimensions."""
    named = [f"--dim {name}={size}" for name, size in sizes.items() if "[" not in name]
    inputs = dict.fromkeys(name.split("[")[0] for name in sizes if "[" in name)
    return " ".join((*named, *(f"--shape {name}:[…]" for name in inputs)))


def _listed(sizes: OpenSizes) -> str:
    derived = f" (and {_with_sizes(sizes.derived)} follow from the model)" if sizes.derived else ""
    return _with_sizes(sizes.default) + derived


def _with_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def is_quick(model: ir.Model) -> bool:
    """Return whether a model with sizes is run by ONNX Runtime in a few seconds."""
    return sum(map(estimate, model.graph)) <= _MOST_WORK


def refusal(model: ir.Model) -> OnnxRuntimeError | None:
    """Return why ONNX Runtime does not run a model on generated values; None if it does, or if that is not known."""
    if not all(map(can_cross, required_inputs(model))) or not is_quick(model):
        return None
    error = _error(model, model)
    if error is not None and error.reason is Reason.OTHER:  # its own inference of fixed sizes may be to blame
        loose = model.clone()
        for value in loose.graph.inputs:
            value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
        error = _error(loose, model)
    return error if error is not None and error.reason in (Reason.RUN_FAILED, Reason.OTHER) else None


def _error(model: ir.Model, sized: ir.Model) -> OnnxRuntimeError | None:
    """Return why ONNX Runtime does not run a model on values for its sized form; None if it does, or cannot tell."""
    try:
        Reference(model).run(*samplers.generate(sized))
    except OnnxRuntimeError as error:
        return error
    except BridgeError:
        return None
    return None


def _runs(model: ir.Model) -> bool:
    return refusal(model) is None and is_quick(model)
