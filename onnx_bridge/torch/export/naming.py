"""Names of values and nodes in an exported graph, after the submodules that they come from.

What exporters call ``flat_0``, ``node_linear_3`` and ``module.encoder.weight`` becomes ``input_ids``,
``/encoder/layer.0/query/MatMul`` and ``encoder.weight``, as in ``state_dict``. Each node gets the path of its
module (``encoder.layer.0.query``) as metadata, `SCOPE`. Stack traces, which name local files, are removed.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.model.provenance import SCOPE
from onnx_bridge.torch.modules.calls import WRAPPER
from passes.graphs.scopes import nodes_of

_SCOPES = "pkg.torch.onnx.name_scopes"
_TORCH = ("pkg.", "namespace")
_PREFIX = f"{WRAPPER}."


def name_graph(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str], modules: Container[str]) -> None:
    """Name inputs and outputs by position, initializers like parameters, and nodes after their module, in place.

    An output that is also an input, or another output, becomes a separate value.
    """
    graph = model.graph
    seen: set[ir.Value] = set(graph.inputs) | set(graph.initializers.values())
    for index, value in enumerate(graph.outputs):
        if value in seen:
            node = ir.node("Identity", [value])
            copy = node.outputs[0]
            copy.type, copy.shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = value = copy
        seen.add(value)
    _name_nodes(model, modules)
    fixed = dict(zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True))
    values = list(_values(graph))
    _clear(values, {*inputs, *outputs}, fixed)
    for value, name in fixed.items():
        value.name = name
    taken = {str(value.name) for value in values}
    for value in list(graph.initializers.values()):
        name = str(value.name)
        if name.startswith(_PREFIX) and name[len(_PREFIX) :] not in taken:
            value.name = name[len(_PREFIX) :]
            taken.add(value.name)
    for value in values:
        _keep(value.metadata_props, {})
    model.producer_name = model.producer_name or "pytorch"
    model.metadata_props.clear()


def name_dimensions(model: ir.Model, dynamic: Mapping[str, Mapping[int, str]]) -> str | None:
    """Name open dimensions as given, not as exported (``s77``); return why one that is now constant cannot be named."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    names: dict[str, str] = {}
    for name, dims in dynamic.items():
        shape = inputs[name].shape
        for axis, symbol in dims.items():
            dim = None if shape is None else shape[axis]
            if isinstance(dim, int):
                return f"dimension {axis} of {name} ({symbol}) has become the constant {dim}"
            if dim is not None and dim.value and (symbol.isidentifier() or dim.value not in names):
                names.setdefault(dim.value, symbol if symbol.isidentifier() else f"({symbol})")
    rename = _renamer(names)
    for value in _values(model.graph):
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else _read(rename(dim.value)) for dim in value.shape])
    for name, dims in dynamic.items():
        shape = inputs[name].shape
        if shape is not None:
            inputs[name].shape = ir.Shape([dims.get(axis, dim) for axis, dim in enumerate(shape)])
    return None


def correct_output_shapes(
    model: ir.Model, sizes: Sequence[Mapping[str, int]], shapes: Sequence[Mapping[str, Sequence[int]]]
) -> None:
    """Correct the shapes of outputs, in place, by those observed for each sample: TorchScript infers some wrongly."""
    for value in model.graph.outputs:
        seen = [sample[str(value.name)] for sample in shapes if str(value.name) in sample]
        if not seen or len({len(shape) for shape in seen}) > 1:
            continue
        ranked = value.shape is not None and len(value.shape) == len(seen[0])
        known = list(value.shape) if ranked and value.shape is not None else [ir.SymbolicDim(None)] * len(seen[0])
        columns = zip(*seen, strict=True)
        dims = [_corrected(dim, list(column), sizes) for dim, column in zip(known, columns, strict=True)]
        value.shape = ir.Shape(dims)


def _corrected(
    dim: int | ir.SymbolicDim, observed: Sequence[int], sizes: Sequence[Mapping[str, int]]
) -> int | ir.SymbolicDim | str | None:
    """Return a dimension that had these sizes in the samples."""
    known = not isinstance(dim, ir.SymbolicDim) or (dim.value is not None and dim.free_symbols() <= sizes[0].keys())
    inferred = [dim.evaluate(symbols) if isinstance(dim, ir.SymbolicDim) else dim for symbols in sizes] if known else []
    if inferred == list(observed):
        return dim
    if len(set(observed)) > 1:
        for symbol in sizes[0]:
            if [size[symbol] for size in sizes] == list(observed):
                return symbol
    return None if known else dim  # an unknown symbol depends on the data


def _renamer(names: Mapping[str, str]) -> Callable[[str | None], str | None]:
    if not names:
        return lambda text: text
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w.])" for name in sorted(names, key=len)[::-1]))

    def rename(text: str | None) -> str | None:
        if text is None:
            return None
        renamed = pattern.sub(lambda match: names[match[0]], text)
        return renamed[1:-1] if re.fullmatch(r"\([^()]*\)", renamed) else renamed

    return rename


@functools.cache
def _read(text: str | None) -> str | None:
    """Return the name or expression of a dimension; None for torch functions that ONNX lacks, such as PythonMod."""
    try:
        ir.SymbolicDim(text).free_symbols()
    except ValueError:
        return None
    return text


def _name_nodes(model: ir.Model, modules: Container[str]) -> None:
    """Name every node after its scope, which dynamo gives in metadata and TorchScript in the node's name."""
    counts: dict[str, int] = {}
    for node in nodes_of(model):
        parts = _scope(node, modules)
        _keep(node.metadata_props, {SCOPE: ".".join(parts)} if parts else {})
        stem = "/".join(("", *parts, node.op_type))
        count = counts[stem] = counts.get(stem, -1) + 1
        node.name = f"{stem}_{count}" if count else stem


def _scope(node: ir.Node, modules: Container[str]) -> list[str]:
    """Return the names of the modules around a node, outermost first, each relative to the one before."""
    text = node.metadata_props.get(_SCOPES)
    if text is not None:
        scopes = [str(scope) for scope in ast.literal_eval(text)][:-1]
        paths = [scope.removeprefix(_PREFIX) for scope in scopes if scope.startswith(_PREFIX)]
        return [path.removeprefix(f"{before}.") for before, path in itertools.pairwise(["", *paths])]
    parts = [part for part in (node.name or "").split("/")[1:-1] if part]
    names: list[str] = []
    for part in parts[1:] if parts[:1] == [WRAPPER] else parts:
        pieces = part.split(".")  # TorchScript has "inner.1" within "inner", where only "1" is new
        tails = [".".join(pieces[start:]) for start in range(len(pieces))]
        names.append(next((tail for tail in tails if ".".join((*names, tail)) in modules), part))
    return names


def _keep(metadata: dict[str, str], more: Mapping[str, str]) -> None:
    """Remove the exporter's own metadata."""
    for key in [key for key in metadata if key.startswith(_TORCH)]:
        del metadata[key]
    metadata.update(more)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    """Return all values of a graph and its subgraphs."""
    for scope in (graph, *graph.subgraphs()):
        yield from scope.inputs
        yield from scope.initializers.values()
        for node in scope:
            yield from node.outputs


def _clear(values: Iterable[ir.Value], wanted: set[str], owners: Mapping[ir.Value, str]) -> None:
    """Rename values whose names are wanted for others."""
    taken = {str(value.name) for value in values} | wanted
    for value in values:
        name = str(value.name)
        if name not in wanted or owners.get(value) == name:
            continue
        fresh = next(new for count in itertools.count(1) if (new := f"{name}_{count}") not in taken)
        value.name = fresh
        taken.add(fresh)
