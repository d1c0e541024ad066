"""Tags of the parts of a graphsurgeon graph: the parts of the model, and how they were shown to the script.

The importer attaches tags, copies of graphs carry them along, and the exporter compares with them what a script left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.surgeon.tensors import ArraySources

_TAG = "_onnx_bridge"


class _Tag:
    """The part of the model that a part of a graphsurgeon graph stands for; a deep copy of the part shares the tag."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Tag:
        return self


@dataclass(frozen=True)
class TensorTag(_Tag):
    """A tensor as it was shown.

    Attributes:
        value: the value of the model.
        owner: the graph that defines it.
        dtype: graphsurgeon's, or None.
        shape: graphsurgeon's, or None.
        kind: graphsurgeon's name of its type.
    """

    value: ir.Value
    owner: ir.Graph | None
    dtype: object
    shape: tuple[int | str | None, ...] | None
    kind: str


@dataclass(frozen=True)
class NodeTag(_Tag):
    """A node as it was shown.

    Attributes:
        node: the node of the model.
        name: its unique name in the graphsurgeon graph.
        attributes: its attributes in graphsurgeon's form.
    """

    node: ir.Node
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class GraphTag(_Tag):
    """A graph, or the graph of a function, as it was shown.

    Attributes:
        model: the whole model.
        sources: the arrays that were read.
        graph: the graph of the model.
        function: the function; None for other graphs.
        name: as shown.
        opset: as shown.
        producer: name and version, as shown.
        ir_version: as shown.
    """

    model: ir.Model
    sources: ArraySources
    graph: ir.Graph
    function: ir.Function | None
    name: str
    opset: int
    producer: tuple[str, str] = ("", "")
    ir_version: int | None = None


def tag_of(part: object) -> Any:
    """Return the tag of a part of a graphsurgeon graph; None for a part that a script made."""
    return vars(part).get(_TAG)  # not getattr, for which graphs log an error


def tag(part: object, what: object) -> None:
    """Tag a part of a graphsurgeon graph."""
    vars(part)[_TAG] = what
