"""Passes of `onnx_ir` as steps of a pipeline: any ``onnx_ir.passes.PassBase``, of the library or of a user."""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.scopes import name_nodes, scopes
from passes.rewriting.base import Context, Exactness, Pass, Result, Rewrite


class OnnxIrPass(Pass):
    """A pass of `onnx_ir`; `adapt` makes a subclass for each."""

    @classmethod
    @abstractmethod
    def make(cls) -> ir.passes.PassBase:
        """Return the pass to run."""

    def run(self, model: ir.Model, context: Context) -> Result:
        """Run it, as one rewrite.

        An in-place pass has modified the model if it says so, or if the graphs differ afterwards.
        """
        if not context.budget.take():
            return Result(model)
        before = _named_nodes(model)
        producers = {str(value.name): node for node in before.values() for value in node.outputs}
        structure = _structure(model)
        done = self.make()(model)
        if not done.modified and (done.model is not model or _structure(model) == structure):
            return Result(model)
        after = _named_nodes(done.model)
        for name in after.keys() - before.keys():
            sources = [producers[str(value.name)] for value in after[name].outputs if value.name in producers]
            lineage.stamp([after[name]], self.name, sources)
        removed = tuple(name for name in before if name not in after)
        return Result(done.model, [Rewrite(removed, tuple(name for name in after if name not in before))])


def adapt(given: ir.passes.PassBase | type[ir.passes.PassBase], name: str | None = None) -> type[OnnxIrPass]:
    """Return the `Pass` class that runs a pass of `onnx_ir`.

    Args:
        given: the pass, or its class, if that can be made without arguments.
        name: the pass's; default: its own attribute ``name``, else that of the class with dashes, without "Pass". Its
            attribute ``exactness`` says how far numbers may move; default: by a quantization step.
    """
    cls = given if isinstance(given, type) else type(given)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__.removesuffix("Pass")).lower()
    members = {
        "name": name or getattr(cls, "name", words),
        "exactness": getattr(cls, "exactness", Exactness.QUANTIZATION_STEP),
        "make": staticmethod(cls if given is cls else lambda: given),
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
    }
    return dataclass(frozen=True)(type(cls.__name__, (OnnxIrPass,), members))


@functools.cache
def as_pass(candidate: object, name: str | None = None) -> type[Pass] | None:
    """Return the class of a pass; None if ``candidate`` is neither a `Pass` nor a pass of `onnx_ir`."""
    if isinstance(candidate, Pass):
        return type(candidate)
    if isinstance(candidate, type) and issubclass(candidate, Pass):
        return candidate
    if isinstance(candidate, type) and issubclass(candidate, ir.passes.PassBase):
        return adapt(candidate, name)
    return None


def _named_nodes(model: ir.Model) -> dict[str, ir.Node]:
    """Return all nodes by name; those without get one."""
    nodes: dict[str, ir.Node] = {}
    for scope in map(name_nodes, scopes(model)):
        nodes |= {str(node.name): node for node in scope.nodes()}
    return nodes


def _structure(model: ir.Model) -> list[Any]:
    """Return all that an edit of the graphs changes, without tensors' elements; equal until something is edited."""
    structure: list[object] = []
    for scope in scopes(model):
        for graph in scope.graphs():
            structure.append((*graph.inputs, None, *graph.outputs, None, *graph.initializers.values()))
            structure += [(value, _Same(value.const_value)) for value in graph.initializers.values()]
            for node in graph:
                structure.append((node, node.domain, node.op_type, *node.inputs, None, *node.outputs))
                structure.append(tuple(map(_Same, node.attributes.values())))
    return structure


class _Same:
    """An object that is held, so that no other gets its id, and equals itself alone."""

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._held is other._held

    __hash__ = None  # type: ignore[assignment]
