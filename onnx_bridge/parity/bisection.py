"""The answer of `bisect`: which leg of a model's way broke, and what it was that broke it."""

from __future__ import annotations

import ast
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.parity.pieces import Runs
from passes.graphs import ORIGIN, PASS

if TYPE_CHECKING:
    from rich.console import RenderableType

_LISTED = 4
"""How many nodes a sentence names."""


class Leg(enum.Enum):
    """A part of the way of a model, each compared with what comes before it."""

    EXPORT = "export"
    """From what was given as the right outputs to the model."""
    MODEL = "model"
    """From the model that was given as the reference to the model."""
    PASSES = "passes"
    """From the model to the cleaned one."""
    MIGRAPHX = "MIGraphX"
    """From the cleaned model to what MIGraphX computes."""
    PRECISION = "precision"
    """From that to what it computes in a lower precision."""


@dataclass(frozen=True)
class Culprit:
    """A node that is at fault.

    Attributes:
        name: its name.
        operator: its operator.
        module: the PyTorch module that it comes from; empty where the model does not say.
        made_by: the pass that made it; empty for a node of the original.
        origin: the nodes of the original that it stands for.
    """

    name: str
    operator: str
    module: str = ""
    made_by: str = ""
    origin: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: ir.Node, original: ir.Model) -> Culprit:
        """Describe a node of a cleaned model."""
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        origin = tuple(json.loads(node.metadata_props.get(ORIGIN, "[]")))
        sources = {each.name: each for each in original.graph.all_nodes() if each.name in {*origin, node.name}}
        modules = [module_of(each) for each in (node, *sources.values())]
        module = next(filter(None, modules), "")
        return cls(str(node.name), operator, module, node.metadata_props.get(PASS, ""), origin)

    def __str__(self) -> str:
        return f"{self.operator} {self.name}" + (f" ({self.module})" if self.module else "")


@dataclass(frozen=True)
class Finding:
    """What is wrong, and where.

    Attributes:
        leg: which leg broke.
        what: what is wrong, as a word that follows the name of what is at fault ("crashes").
        message: how outputs differ, or the words of MIGraphX or ONNX Runtime.
        step: MIGraphX's step, of parse, quantize, compile, run; empty elsewhere.
        nodes: the nodes at fault: one, or more that are wrong together alone; empty where no node is.
        alone: whether the nodes show the fault when they are fed with the reference's own values.
        error: the largest absolute error of the outputs that differ, of the nodes at fault where they are known.
        sample: the number of the sample that shows it.
        pass_name: the pass at fault, or that made the node.
        application: which application of it that was, from 1; 0 where its applications cannot be told apart.
        applications: of how many.
        before: the nodes that went with that application, or were changed.
        after: those that came.
    """

    leg: Leg
    what: str
    message: str
    step: str = ""
    nodes: tuple[Culprit, ...] = ()
    alone: bool = True
    error: float | None = None
    sample: int | None = None
    pass_name: str = ""
    application: int = 0
    applications: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What is wrong, in one sentence, without how it shows."""
        match self.leg:
            case Leg.EXPORT:
                return "the export is at fault: on ONNX Runtime the model gives other outputs than those given for it"
            case Leg.MODEL:
                return f"the model is at fault, before any pass: {self._named()} {self._verb()}"
            case Leg.PASSES:
                nth = f", application {self.application} of {self.applications}" if self.application else ""
                where = f", which leaves {self._named()}" if self.nodes else ""
                return f"the pass {self.pass_name} is at fault{nth}{where}"
        by = f", made by the pass {self.pass_name}," if self.pass_name else ""
        where = f"MIGraphX in {self.what_precision}" if self.leg is Leg.PRECISION else "MIGraphX"
        if not self.alone:
            return f"{where} is at fault, but no part of the model by itself: {self.what} as a whole"
        return f"{where} is at fault: {self._named()}{by} {self._verb()} in its step {self.step}"
