"""The sizes of a conversion that nobody chose: derived from the model (`passes.shapes.open_sizes`), otherwise 1.

A default that is too small is an error that names every open size: inference gives a result no elements or fewer, or
ONNX Runtime does not run the model. ONNX Runtime's refusal counts if larger sizes run, or if the node that fails takes
or refuses operands by their sizes alone; otherwise the generated values may be to blame, which is a note. If the
symbolic model also fails, its sizes are not the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.conversion.sizes.refusals import BY_SIZES_ALONE, is_quick, is_refused_unsized, refusal
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import CleanRequest
from passes.rewriting.base import Context
from passes.shapes.open_sizes import Impossible, OpenDims, OpenSizes

_LARGER = (2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sizes that are tried if the default is too small."""
_TRIED = (8, 64, 256)
"""The sizes that ONNX Runtime is asked about."""
_EXAMPLE = 4
"""The size in an example of an option."""


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
        hint = f"choose {_options(example)}" + ("" if enough is None else f"; {enough} is enough")
        derived = f" (and {_text(sizes.derived)} follow from the model)" if sizes.derived else ""
        super().__init__(f"{what}; nobody chose {_text(sizes.default)}{derived}", hint=hint)
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
            names = [name for name in chosen._scalable if chosen._is_guilty(name, too_small)] or chosen._scalable
            enough = next((size for size in _LARGER if dims.too_small(chosen._scaled(size).all) is None), None)
            name = str(node.name or node.outputs[0].name)
            raise chosen._too_small(names, f" for {node.op_type} {name}", name, enough)
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
            how = f"choose with {_options(dict.fromkeys(default, _EXAMPLE))}"
            notes.append(f"open dimensions got the size {self.request.default_dim}: {', '.join(default)}; {how}")
        if self.sizes.derived:
            notes.append(f"open dimensions that follow from the model: {_text(self.sizes.derived)}")
        return notes

    def check(self, model: ir.Model) -> list[str]:
        """Run the sized model on ONNX Runtime, if this is quick, and return notes; raises OpenSizesError."""
        error = refusal(model) if self.sizes.default else None
        if error is None or is_refused_unsized(self.model):
            return []
        enough = next((size for size in _TRIED if self._runs(size)), None)
        if enough is not None:
            raise self._too_small(self._scalable, f": {error.what}", error.node, enough)
        if error.operator in BY_SIZES_ALONE:
            raise OpenSizesError(f"the model does not run: {error.what}", self.sizes, (), node=error.node, enough=None)
        return [f"ONNX Runtime does not run the model with the sizes {_text(self.sizes.all)}: {error.what}"]

    def _too_small(self, names: Sequence[str], why: str, node: str | None, enough: int | None) -> OpenSizesError:
        are = "is" if len(names) == 1 else "are"
        what = f"{' and '.join(names)} {are} {self.request.default_dim}, which is too small{why}"
        return OpenSizesError(what, self.sizes, names, node=node, enough=enough)

    @property
    def _scalable(self) -> list[str]:
        """The dimensions with the default size that may have to be larger: the batch only if there is no other."""
        batch = self.dims.batch_names()
        return [name for name in self.sizes.default if name not in batch] or list(self.sizes.default)

    def _scaled(self, size: int) -> OpenSizes:
        """Return the sizes if the dimensions that may have to be larger have this one."""
        return self.dims.sizes(self.request.default_dim or 1, dict.fromkeys(self._scalable, size))

    def _is_guilty(self, name: str, before: Impossible) -> bool:
        """Return whether another size of one dimension changes the size of a result that is too small."""
        after = self.dims.too_small({**self.sizes.all, name: _LARGER[-1]})
        return after is None or after.node is not before.node or after.sizes != before.sizes

    def _applied(self, sizes: OpenSizes) -> CleanRequest:
        shapes = self.dims.shapes_of_unnamed(sizes.all)
        named = {name: size for name, size in sizes.all.items() if name in self.dims.symbols}
        return replace(self.request, dims={**self.request.dims, **named}, shapes={**self.request.shapes, **shapes})

    def _runs(self, size: int) -> bool:
        """Return whether ONNX Runtime runs the model if the dimensions that may have to be larger have a size."""
        model = self.model.clone()
        freezing(self._applied(self._scaled(size))).run(model, Context())
        return refusal(model) is None and is_quick(model)


def _options(sizes: Mapping[str, int]) -> str:
    """Return the options that give sizes to open dimensions."""
    named = [f"--dim {name}={size}" for name, size in sizes.items() if "[" not in name]
    inputs = dict.fromkeys(name.split("[")[0] for name in sizes if "[" in name)
    return " ".join((*named, *(f"--shape {name}:[…]" for name in inputs)))


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
