"""The model whose values are compared, and the original that it was cleaned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.model import io as models
from onnx_bridge.model import provenance
from onnx_bridge.reference.reference import Reference
from passes.graphs.scopes import required_names
from passes.probing.partition import extract


@dataclass(frozen=True)
class LayerSubject:
    """The cleaned model whose values are compared, and its inputs.

    Attributes:
        original: the model before cleaning; None leaves the errors of cleaning out.
        original_sample: the inputs of the original; None is ``sample``.
        host: the reasons of the nodes that ONNX Runtime runs in the bundle, by name.
    """

    model: ir.Model | Path
    sample: Mapping[str, Value]
    original: ir.Model | Path | None = None
    original_sample: Mapping[str, Value] | None = None
    host: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OriginalModel:
    """The model before cleaning, with its inputs, and the names of the values that its nodes compute."""

    model: ir.Model
    sample: Mapping[str, Value]
    values: frozenset[str]
    modules: Mapping[str, str]

    @classmethod
    def of(cls, subject: LayerSubject) -> OriginalModel | None:
        """Return the original of a subject; None if it has none."""
        if subject.original is None:
            return None
        model = models.loaded(subject.original)
        sample = subject.sample if subject.original_sample is None else subject.original_sample
        values = frozenset(str(value.name) for node in model.graph for value in node.outputs if value.name)
        return cls(model, sample, values, {str(node.name): provenance.module(node) for node in model.graph.all_nodes()})

    def compute(self, names: Iterable[str]) -> Mapping[str, Value]:
        """Return some of its values on ONNX Runtime; raises InputError."""
        inputs = required_names(self.model)
        session = Reference(extract(self.model, inputs, dict.fromkeys(names)))
        return session.run({name: self.sample[name] for name in inputs})
