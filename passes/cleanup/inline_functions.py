"""Replace calls of the model's functions by their bodies.

    y = f<alpha=2>(x)        where f<alpha>(a) = g(a, beta=@alpha)        →  y = g(x, beta=2)

A name ``inner`` of a function becomes ``call/inner``, with the name of the calling node. Functions that are no longer
called are removed.

Skips: a function whose operators have another meaning in the opset of the model, and one that has the name and the
domain of a standard operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from passes.core.errors import InputError
from passes.core.schemas import schema_of
from passes.core.text import counted
from passes.graphs.limits import called_functions, check_limits
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.graphs.traversal import subgraphs, with_nested
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip
from passes.rewriting.edit import Proposal


class InlineFunctions(Pass):
    """Replace calls of the model's functions by their bodies."""

    name = "inline-functions"

    def run(self, model: ir.Model, context: Context) -> Result:
        """Inline from the outside in: the calls within a body are inlined after the body itself.

        Raises InputError if a function calls itself, or functions stand for too many nodes; or a call has an attribute
        of a type that its function cannot use.
        """
        result = Result(model)
        if not model.functions:
            return result
        check_limits(model)
        scope, *_ = map(name_nodes, scopes(model))
        pending = list(scope.nodes())[::-1]
        while pending:
            call = pending.pop()
            if call.op_identifier() not in model.functions:
                continue
            function = model.functions[call.op_identifier()]
            obstacle = _obstacle(call, function, scope)
            if obstacle is not None:
                result.skips.append(Skip(obstacle, call.name or ""))
                continue
            if not context.budget.take():
                return result
            proposal = _instantiate(call, function, scope)
            result.rewrites.append(proposal.commit(self.name))
            pending.extend(list(with_nested(proposal.nodes))[::-1])
        self._remove_unused(model, context, result)
        return result

    def _remove_unused(self, model: ir.Model, context: Context, result: Result) -> None:
        called = called_functions(model.graph, model)
        for identifier in [unused for unused in model.functions if unused not in called]:
            if context.budget.take():
                del model.functions[identifier]
                result.rewrites.append(
                    Rewrite((), note=f"function {'::'.join(filter(None, identifier))} is not called")
                )


def _obstacle(call: ir.Node, function: ir.Function, scope: Scope) -> str | None:
    """Return why a call cannot be replaced by the function's body."""
    if len(call.inputs) > len(function.inputs):
        return f"it is given {counted(len(call.inputs), 'input')}, and its function takes {len(function.inputs)}"
    if len(call.outputs) > len(function.outputs):
        return f"it has {counted(len(call.outputs), 'output')}, and its function {len(function.outputs)}"
    if call.domain in ("", "ai.onnx.ml") and onnx.defs.has(call.op_type, scope.opset(call.domain), call.domain):
        return "ONNX leaves it to runtimes whether they run the standard operator of this name, as ONNX Runtime does"
    inner = Scope(scope.model, function.graph, function)
    for node in inner.nodes():
        if node.op_identifier() in scope.model.functions or node.domain not in scope.opset_imports:
            continue
        here, there = scope.opset(node.domain), inner.opset(node.domain)
        if here != there and _since(node, here) != _since(node, there):
            domain = node.domain or "ai.onnx"
            return f"its function uses {node.op_type} of {domain} {there}, which is another in {domain} {here}"
    return None


def _since(node: ir.Node, version: int) -> int:
    """Return the version that last changed an operator; one that ONNX does not define may change with every version."""
    schema = schema_of(node.op_type, version, node.domain)
    return version if schema is None else schema.since_version


def _instantiate(call: ir.Node, function: ir.Function, scope: Scope) -> Proposal:
    """Return a copy of the body, for the inputs and attributes of one call."""
    body = function.clone()
    nodes = list(body)
    inner = list(with_nested(nodes))
    attributes = {name: attribute for name, attribute in function.attributes.items() if attribute.value is not None}
    attributes |= call.attributes
    for node in inner:
        _resolve(node, attributes, function.opset_imports, call)
    given = [*call.inputs, *(None for _ in range(len(function.inputs) - len(call.inputs)))]
    arguments = dict(zip(body.inputs, given, strict=True))
    for parameter, argument in arguments.items():
        for node, index in parameter.uses():
            node.replace_input_with(index, argument)
    outputs = [arguments.get(value, value) for value in body.outputs][: len(call.outputs)]
    body.outputs.clear()
    body.graph.remove(nodes)
    _rename(call, nodes, scope)
    for node in inner:
        node.metadata_props.update({**call.metadata_props, **node.metadata_props})
    for domain, version in function.opset_imports.items():
        if domain not in scope.opset_imports and any(node.domain == domain for node in inner):
            scope.model.opset_imports[domain] = version
    return Proposal(scope, call, outputs, nodes)


def _resolve(node: ir.Node, attributes: Mapping[str, ir.Attr], opsets: Mapping[str, int], call: ir.Node) -> None:
    """Replace references by the attributes of the call; those that are not given are left out."""
    schema = schema_of(node.op_type, opsets.get(node.domain, 1), node.domain)
    formals = schema.attributes if schema is not None else {}
    for name, attribute in list(node.attributes.items()):
        if not attribute.is_ref():
            continue
        given = attributes.get(str(attribute.ref_attr_name))
        if given is None:
            del node.attributes[name]
        elif name in formals and given.type.value != formals[name].type.value:  # type: ignore[attr-defined]
            what = f"{given.name} is of type {given.type.name}, and {node.op_type} of its function takes no such {name}"
            raise InputError(what, where=f"node {call.name}")
        elif given.is_ref():
            node.attributes[name] = ir.RefAttr(name, str(given.ref_attr_name), given.type)
        else:
            node.attributes[name] = ir.Attr(name, given.type, given.value)


def _rename(call: ir.Node, nodes: Iterable[ir.Node], scope: Scope) -> None:
    """Prefix names with that of the call; forget the shapes of results, which differ from call to call.

    The results of a Scan's body keep their rank: ONNX Runtime needs to know it.
    """

    def rename(value: ir.Value) -> None:
        if value.name:
            value.name = scope.names.value(f"{call.name}/{value.name}")

    for node in nodes:
        node.name = scope.names.node(f"{call.name}/{node.name}")
        for output in node.outputs:
            rename(output)
            output.shape = None
        for graph in subgraphs(node):
            scan = (node.domain, node.op_type) == ("", "Scan")
            results = {result: result.shape for result in graph.outputs} if scan else {}
            for value in (*graph.inputs, *graph.initializers.values()):
                rename(value)
                if value.shape is not None and not value.is_initializer():
                    value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])
            _rename(call, graph, scope)
            for result, shape in results.items():
                if result.shape is None and shape is not None:
                    result.shape = ir.Shape([None] * len(shape))


def inlined(model: ir.Model) -> ir.Model:
    """Return a model without calls of its functions: itself if it has none, else a copy; raises InputError."""
    if not model.functions:
        return model
    return InlineFunctions().run(model.clone(), Context()).model
