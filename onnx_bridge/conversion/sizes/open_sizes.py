"""The sizes of a conversion that nobody chose: derived from the model (`passes.shapes.open_sizes`), otherwise 1.

That is right for a batch alone: the size of a sequence or an image that nothing determines has to be chosen, unless
the request says that all are 1. The error proposes typical sizes, which the reference has been tried with.

A default that is too small is an error that names every open size: inference gives a result no elements or fewer, or
ONNX Runtime does not run the model. ONNX Runtime's refusal counts if larger sizes run, or if the node that fails takes
or refuses operands by their sizes alone; otherwise the generated values may be to blame, which is a note. If the
symbolic model also fails, its sizes are not the cause. Sizes that a user chose are not, if elements of inputs select
others that meet them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import onnx_ir as ir

from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.conversion.sizes.refusals import is_by_sizes, is_quick, is_steered, refusal
from onnx_bridge.conversion.sizes.size_search import SizeSearch
from onnx_bridge.conversion.sizes.typical_sizes import nobody_chose, typical_sizes
from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.reference import load_error
from onnx_bridge.requests.conversion import CleanRequest
from onnx_bridge.requests.spelling import as_typed
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.decoders import is_decoder, usual_length
from onnx_bridge.samples.dimensions import named_dims
from onnx_bridge.samples.roles import Choice
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.shapes.open_sizes import Impossible, OpenDims, OpenSizes

_FOLDING = "fold-constants,infer-shapes,fold-constants,infer-shapes"
"""The passes that compute the shapes which depend on the batch alone."""


class OpenSizesError(InputError):
    """The model does not work with the sizes that it was given, or that nobody chose.

    Attributes:
        sizes: the sizes of all open dimensions, by name; a dimension without a name is ``input[axis]``.
        too_small: the names of the dimensions to change.
        node: the node that they do not fit; None if it is unknown.
        advised: sizes of these dimensions with which the reference runs the model; empty if they are unknown.
        enough: the one size of all these; None if they differ, or are unknown.
        shapes: the shapes, with these sizes, of the inputs whose dimensions have no names.
    """

    page = "start/first-model.md#several-sizes"

    def __init__(
        self,
        what: str,
        sizes: Mapping[str, int],
        changed: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        *,
        node: str | None,
        hint: str,
    ) -> None:
        super().__init__(what, hint=hint)
        self.sizes, self.too_small, self.node = dict(sizes), tuple(changed), node
        self.advised, self.shapes = dict(changed), dict(shapes)
        self.options = (*as_typed(_options(changed, shapes)).split(),)
        different = {*changed.values()}
        self.enough = different.pop() if len(different) == 1 else None
        self.details = {"sizes": self.sizes, "too_small": self.too_small, "node": node, "enough": self.enough}
        self.details |= {"advised": self.advised, "shapes": self.shapes}


@dataclass(frozen=True)
class ChosenSizes:
    """The sizes of the open dimensions of a model, which is not changed; ``request`` is as it was given."""

    model: ir.Model
    request: CleanRequest
    dims: OpenDims
    sizes: OpenSizes

    @classmethod
    def of(cls, model: ir.Model, request: CleanRequest) -> ChosenSizes:
        """Choose the sizes that a request leaves open; raises OpenSizesError if inference finds them too small.

        Raises InputError for a decoder of which no size but that of a batch is given: all follow from its cache.
        """
        dims = OpenDims(model, request.dims, request.shapes, request.freeze)
        if request.asks and is_decoder(model) and dims.unchosen(dims.sizes(1).default):
            batch = OpenDims(model, {}, {}, request.freeze).batch_names()
            if not request.shapes and request.dims.keys() <= batch:
                raise _of_decoder(model)
        is_open = not all(value.shape is not None and value.shape.is_static() for value in model.graph.inputs)
        chosen = cls(model.clone() if is_open else model, request, dims, dims.sizes(request.dim_default or 1))
        if dims.names and (too_small := dims.too_small(chosen.sizes.all)) is not None:
            node = too_small.node
            name = str(node.name or node.outputs[0].name)
            raise chosen._error("", f" is too small for {node.op_type} {name}", name)
        return chosen._with_batches() if request.asks else chosen

    @property
    def applied(self) -> CleanRequest:
        """The request, with these sizes."""
        shapes = self.dims.shapes_of_unnamed(self.sizes.all)
        named = {name: size for name, size in self.sizes.all.items() if name in self.dims.symbols}
        return replace(self.request, dims={**self.request.dims, **named}, shapes={**self.request.shapes, **shapes})

    @property
    def is_open(self) -> bool:
        """True if any size of an input may be chosen."""
        return bool(self._free.names)

    @property
    def notes(self) -> list[str]:
        """Sentences for the user."""
        notes = []
        if default := self.sizes.default:
            how = as_typed(f"choose others with {_options(dict.fromkeys(default, 'N'), {})}")
            notes.append(f"sizes chosen for you: {_text(default)}; {how}")
        if self.sizes.derived:
            notes.append(f"sizes that follow from the model: {_text(self.sizes.derived)}")
        return notes

    @property
    def by_input(self) -> dict[str, dict[str, int]]:
        """The sizes that nothing determines, by input and dimension."""
        return self.dims.by_input(self.sizes.default)

    def check(self, model: ir.Model) -> list[str]:
        """Run the sized model on ONNX Runtime, if this is quick, and return notes; raises OpenSizesError."""
        notes = self._refusal(model)
        if self.request.asks:
            self.ask()
        return notes

    def ask(self) -> None:
        """Raise OpenSizesError, whose hint has typical sizes, if a default is a guess."""
        if names := self.dims.unchosen(self.sizes.default):
            raise self._question(names)

    def _with_batches(self) -> ChosenSizes:
        """Return the same, in which dimensions that only the size of the batch fits follow from it."""
        batch = self._free.batch_names()
        size = next((size for name, size in {**self._given, **self.sizes.all}.items() if name in batch), 1)
        larger = dict.fromkeys(batch, size + 1)

        def follows(name: str) -> bool:
            alone = self._runs({name: size + 1}, every=False)
            return not alone and all(
                self._runs(dims, every=False) for dims in ({name: size}, larger | {name: size + 1})
            )

        following = dict.fromkeys(filter(follows, self.dims.unchosen(self.sizes.default)), size)
        default = {name: size for name, size in self.sizes.default.items() if name not in following}
        return replace(self, sizes=OpenSizes(default, {**self.sizes.derived, **following}))

    def _question(self, names: Sequence[str]) -> OpenSizesError:
        """Return the error that asks for some sizes, whose hint has typical ones."""
        typical = [*typical_sizes(self.model.graph.inputs, names)]
        sizes, tried = typical[0], ""
        if is_quick(self._sized(sizes)):
            running = next((dims for dims in typical if self._runs(dims, every=False)), None)
            found = running or self._search() or {}
            sizes, tried = {**dict.fromkeys(names if found else (), 1), **found}, ", with which the reference runs it"
        shapes = self._free.shapes_of_unnamed(self._resized(sizes).all) if sizes else {}
        how = f"{_options(sizes, shapes)}{tried}" if sizes else _options(dict.fromkeys(names, "N"), {})
        hint = f"choose {how}; or take 1 with `dim_default=1`"
        known = {**self._given, **self.sizes.all}
        return OpenSizesError(nobody_chose(names), known, sizes, shapes, node=None, hint=hint)

    def _refusal(self, model: ir.Model) -> list[str]:
        error = refusal(model) if model is not self.model else None
        if error is None or load_error(self.model) is not None:
            return []
        failure = self._error("the model does not run with ", f": {error.what}", error.node)
        by_chance = is_steered(error, model) and not self.sizes.default.keys() >= {*failure.too_small}
        if (failure.too_small and not by_chance) or is_by_sizes(error, model):
            raise failure
        return [f"ONNX Runtime does not run the model with the sizes {_text(failure.sizes)}: {error.what}"]

    def _error(self, before: str, after: str, node: str | None) -> OpenSizesError:
        """Return the error whose sentence has the sizes to change, or all, and the hint with sizes that were tried."""
        sizes, changed = {**self._given, **self.sizes.all}, self._search()
        if changed and self.request.asks:
            rest = [name for name in self.dims.unchosen(self.sizes.default) if name not in changed]
            usual = ({**changed, **others} for others in typical_sizes(self.model.graph.inputs, rest))
            changed = next((dims for dims in usual if self._runs(dims, every=False)), changed)
        what = before + _text({name: sizes[name] for name in changed or sizes}) + after
        if self.sizes.default:
            what += f"; sizes chosen for you: {_text(self.sizes.default)}"
        hint = f"choose the sizes that it was made for, as {_options(dict.fromkeys(sizes, 'N'), {})}"
        shapes: Mapping[str, Sequence[int]] = {}
        if changed:
            shapes = self._free.shapes_of_unnamed(self._resized(changed).all)
            hint = f"choose {_options(changed, shapes)}, with which the reference runs it"
        return OpenSizesError(what, sizes, changed or {}, shapes, node=node, hint=hint)

    def _search(self) -> dict[str, int] | None:
        """Return sizes with which the reference runs the model: of dimensions that nobody chose, otherwise of any."""

        default, batch = self.sizes.default, self._free.batch_names()
        settled = self._settled({name: size for name, size in {**self._given, **default}.items() if name in batch})

        def conflict(changed: Mapping[str, int]) -> Impossible | None:
            dims = settled if batch.isdisjoint(changed) else self._free
            return dims.conflict(self._resized(changed).all)

        free = (default, {**self._given, **default})
        compares = any(isinstance(spec.role, Choice) for spec in samplers.specs(self.model))
        runs = [partial(self._runs, every=every) for every in ((True, False) if compares else (False,))]
        typical = [dims for dims in typical_sizes(self.model.graph.inputs, self.dims.unchosen(default)) if dims]
        least = not self.request.asks
        searches = (SizeSearch(sizes, batch, typical, least, run, conflict) for sizes in free for run in runs)
        return next(filter(None, (search.result() for search in searches)), None)

    def _settled(self, batch: Mapping[str, int]) -> OpenDims:
        """Return the open dimensions of the model with the sizes of a batch, and what follows from it as constants.

        They are those of the model as it is if it does not take the batch.
        """
        model = self.model.clone()
        for value in model.graph.inputs:
            if value.shape is not None:
                value.shape = ir.Shape([batch.get(str(dim), dim) for dim in named_dims(value) or ()])
        try:
            (*_, step) = Pipeline.parse(_FOLDING).run(model, Context())
        except InputError:
            return self._free
        return OpenDims(step.result.model, {}, {}, self.request.freeze)

    @cached_property
    def _free(self) -> OpenDims:
        """All open dimensions, also those that are given."""
        return OpenDims(self.model, {}, {}, self.request.freeze)

    @property
    def _given(self) -> dict[str, int]:
        return {name: self.dims.given[name] for name in self._free.names if name in self.dims.given}

    def _resized(self, changed: Mapping[str, int]) -> OpenSizes:
        return self._free.sizes(self.request.dim_default or 1, {**self._given, **self.sizes.default, **changed})

    def _runs(self, changed: Mapping[str, int], *, every: bool) -> bool:
        """Return whether the reference runs the model if some dimensions have other sizes, or every branch of it."""
        if self._free.too_small(self._resized(changed).all) is not None:
            return False
        model = self._sized(changed)
        return is_quick(model) and refusal(model, every=every) is None

    def _sized(self, changed: Mapping[str, int]) -> ir.Model:
        """Return a copy of the model if some dimensions have other sizes."""
        sizes, model = self._resized(changed), self.model.clone()
        ranked = {str(value.name) for value in model.graph.inputs if value.shape is not None}
        shapes = {name: shape for name, shape in self.request.shapes.items() if name not in ranked}
        named = {name: size for name, size in sizes.all.items() if name in self._free.symbols}
        shapes |= self._free.shapes_of_unnamed(sizes.all)
        freezing(replace(self.request, dims=named, shapes=shapes)).run(model, Context())
        return model


def _of_decoder(model: ir.Model) -> InputError:
    """Return the error for a decoder that is converted as another model."""
    length = usual_length({str(value.name): value for value in model.graph.inputs})
    hint = f"convert it with `decoder=True` and `max_length={length}`, for a cache of {length} tokens"
    error = InputError("this is a language model with a cache, from which its open sizes follow", hint=hint)
    error.options = ("--as", "decoder", "--max-length", str(length))
    return error


def _options(sizes: Mapping[str, int | str], shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the options that give sizes to open dimensions; those without a name by the whole ``shapes`` of inputs."""
    named = {name: size for name, size in sizes.items() if "[" not in name}
    inputs = dict.fromkeys(name.split("[")[0] for name in sizes if "[" in name)
    unnamed = {name: list(shapes.get(name, "…")) for name in inputs}
    return " ".join(f"`{option}={values}`" for option, values in (("dims", named), ("shapes", unnamed)) if values)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
