"""Convert a model to another version of the standard operators.

    Squeeze<axes=[0]>(x), opset 12  →  Squeeze(x, [0]), opset 13

Nodes whose operator has the same definition in both versions, or only gained types, are not changed; ONNX's version
converter converts the others, one at a time. Weights are not read. Operators of other domains are unchanged.

If one operator has no equivalent, or the converter does not support it, the model is rejected and not changed.
Functions import their own opsets: these change only if none of the function's operators does.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from passes.core.errors import InputError
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.rewriting.base import Context, Exactness, Pass, Result, Rewrite
from passes.rewriting.old_signatures import LOWEST
from passes.shapes.inference import infer_node
from passes.specialize.opset_conversion import Converted, Converter, UnconvertibleError, stays


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Convert a model to another version of the standard operators.

    Attributes:
        to: the version; required.
    """

    name = "convert-opset"
    exactness = Exactness.ROUNDING
    to: int | None = None

    def run(self, model: ir.Model, context: Context) -> Result:
        """Convert all nodes, or none.

        Raises InputError if the version is missing or does not exist, or an operator cannot be converted.
        """
        result = Result(model)
        scope = Scope(model, model.graph)
        source, target = scope.opset(), self._target()
        if source == target and all(
            function.opset_imports.get("", target) == target for function in model.functions.values()
        ):
            return result
        if source < LOWEST:
            raise InputError(f"the model has opset {source}, and conversion starts at {LOWEST}", where=self.name)
        functions = list(model.functions.values())
        for around in scopes(model):
            name_nodes(around)
        for function in functions:
            self._check(function, target, model)
        done = self._convert(scope, target)
        if not context.budget.take():
            for conversion in done:
                conversion.proposal.discard()
            return result
        for conversion in done:
            conversion.commit(self.name)
        _imports(model.graph)[""] = target
        for function in functions:
            if "" in _imports(function.graph):
                function.graph.opset_imports[""] = target
        after = Scope(model, model.graph)
        for conversion in done:
            for node in conversion.proposal.nodes:
                infer_node(node, after)
        before = tuple(conversion.proposal.node.name or "" for conversion in done)
        made = tuple(node.name or "" for conversion in done for node in conversion.proposal.nodes)
        result.rewrites.append(Rewrite(before, made, f"opset {source} → {target}"))
        return result

    def _target(self) -> int:
        newest = onnx.defs.onnx_opset_version()
        if self.to is None:
            raise InputError("its option to is missing", where=self.name, hint="as in convert-opset{to=17}")
        if not LOWEST <= self.to <= newest:
            raise InputError(
                f"conversion to opset {self.to} is not possible",
                where=self.name,
                hint=f"there are {LOWEST} to {newest}",
            )
        return self.to

    def _convert(self, scope: Scope, target: int) -> list[Converted]:
        converter = Converter(scope, target)
        done: list[Converted] = []
        for node in scope.nodes():
            try:
                converted = converter.convert(node)
            except UnconvertibleError as error:
                for conversion in done:
                    conversion.proposal.discard()
                raise InputError(
                    f"{node.op_type} cannot be converted to opset {target}: {error}",
                    where=f"{self.name}, node {node.name}",
                ) from None
            if converted is not None:
                done.append(converted)
        return done

    def _check(self, function: ir.Function, target: int, model: ir.Model) -> None:
        """Require that no operator of a function changes."""
        name = "::".join(filter(None, function.identifier()))
        scope = Scope(model, function.graph, function)
        for node in scope.nodes():
            try:
                same = stays(node, scope.opset(), target, model)
            except UnconvertibleError:
                same = False
            if not same:
                raise InputError(
                    f"{node.op_type} in the function {name} differs between opsets {scope.opset()} and {target}",
                    where=self.name,
                    hint="put inline-functions before this pass",
                )


def _imports(graph: ir.Graph) -> dict[str, int]:
    """Return the imported versions of a graph; ``ai.onnx`` is renamed to the empty domain."""
    imports = graph.opset_imports
    if "ai.onnx" in imports:
        imports[""] = imports.pop("ai.onnx")
    return imports
