"""ONNX models as files for a quantizer, and its result.

Quantizers quantize every operator that they support. Operators that are folded before cost neither a quantization step
nor a kernel: BatchNormalization is folded into its convolution, and constants are folded. For weights of 4 bits, which
quantizers store for MatMul alone, Gemm becomes one. Nodes get names, and functions are inlined, so that nodes can be
excluded by name. While a quantizer has the model, names are neutral.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import clean
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.model import io as models
from onnx_bridge.quantization.neutral_names import NeutralNames
from onnx_bridge.requests.quantization import QuantizeRequest
from passes.graphs import lineage
from passes.graphs.int8_kernels import PRODUCTS
from passes.graphs.quantization import quantized_node
from passes.graphs.scopes import name_nodes, scopes, values_of, weight_bytes

_INLINE = "inline-functions,unshadow-names"
_FOLD = "fold-constants,remove-identity,fold-batch-norm,remove-dead"
_HALF = 19
"""The opset since which QuantizeLinear takes float16."""
_LARGE = 1 << 30
"""Bytes of weights beyond which external data is used: protobuf files are limited to 2 GiB."""


@dataclass(frozen=True)
class Source:
    """A float model in a temporary folder: its file, and the ``target`` file that the quantizer writes.

    ``excluded`` names the nodes that stay in float, as the file does; ``large`` says whether external data is used.
    """

    path: Path
    target: Path
    excluded: tuple[str, ...]
    large: bool


@dataclass(frozen=True)
class Prepared:
    """The model that a quantizer gets: its file, its graph, and what the neutral names of both stand for.

    ``operators`` has the operator of each node of the user's model, by its name.
    """

    source: Source
    graph: ir.Graph
    names: NeutralNames
    operators: Mapping[str, str]

    def origins(self) -> dict[str, frozenset[str]]:
        """Return the nodes of the user's model that each node stands for, by its neutral name."""
        own = {node: {self.names.original(str(node.name))} for node in self.graph.all_nodes()}
        return {str(node.name): frozenset(lineage.replaced(node) or name) for node, name in own.items()}

    def named(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Return the neutral names of the nodes that stand for nodes of the user's model."""
        return tuple(name for name, origins in self.origins().items() if not origins.isdisjoint(wanted))

    def result(self, by: str) -> ir.Model:
        """Return the model that a quantizer, named ``by``, has written, without unused imports; raises InputError."""
        if not self.source.target.is_file():  # quantizers only log some failures
            raise InputError(f"{by} wrote no model, and raised no error")
        try:
            model = models.load(self.source.target)
        except InputError as error:
            raise InputError(f"{by} wrote an invalid model: {self.names.original(error.what)}") from error
        used = {node.domain for graph in _graphs(model) for node in graph.all_nodes()}
        for domain in set(model.opset_imports) - used - {""}:
            del model.opset_imports[domain]
        model.graph.sort()
        expected = [value.name for value in self.graph.outputs]
        del model.graph.outputs[len(expected) :]  # Quark leaves those that it added to correct biases
        if [value.name for value in model.graph.outputs] != expected:
            raise InputError(f"{by} wrote a model with other outputs")
        self.names.restore(model)
        return model


@contextmanager
def prepared(model: ir.Model, request: QuantizeRequest) -> Iterator[Prepared]:
    """Write the file that a quantizer reads, for a request that says which nodes stay in float.

    Raises InputError if the model is quantized already, or has no such node.
    """
    refuse_quantized(model)
    model = model.clone()  # whose nodes are named
    for scope in scopes(model):
        name_nodes(scope)
    kinds = {str(node.name): node.op_type for graph in _graphs(model) for node in graph.all_nodes()}
    names = _excluded(kinds, request.exclude)
    opset = model.opset_imports.get("", 0)
    half = any(value.dtype == ir.DataType.FLOAT16 for value in values_of(model))
    lowest = max(request.format.opset, _HALF if half else 0)
    raised = f"infer-shapes,convert-opset{{to={lowest}}}," if opset < lowest else ""
    split = ",split-gemm" if request.scheme == "int4-weights" else ""
    ready = clean(model, pipeline=f"{_INLINE},{raised}{_FOLD}{split},infer-shapes").model
    products = [node for node in ready.graph if node.op_type in PRODUCTS] if request.float_ends else []
    kept = [*products[:1], *products[1:][-1:]] + [
        node for node in ready.graph.all_nodes() if node.name in names or not names.isdisjoint(lineage.origin(node))
    ]
    neutral = NeutralNames(ready)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        path = Path(folder) / "float.onnx"
        large = weight_bytes(ready) > _LARGE
        models.save(ready, path)
        excluded = tuple(dict.fromkeys(str(node.name) for node in kept))
        yield Prepared(Source(path, Path(folder) / "quantized.onnx", excluded, large), ready.graph, neutral, kinds)


def refuse_quantized(model: ir.Model) -> None:
    """Check that a model is not quantized; raises an InputError that names the first quantized node."""
    if (node := quantized_node(model)) is not None:
        where, hint = f"{node.op_type} {node.name}".strip(), "quantize the original model, in float"
        raise InputError("the model is quantized already", where=where, hint=hint)


def _excluded(kinds: Mapping[str, str], wanted: Collection[str]) -> frozenset[str]:
    operators = set(kinds.values())
    for name in wanted:
        if name not in kinds.keys() | operators:
            hint = nearest(name, kinds.keys() | operators) or f"its operators are {', '.join(sorted(operators))}"
            raise InputError(f"the model has no node or operator {name!r}", where="exclude", hint=hint)
    return frozenset(name for name, kind in kinds.items() if name in wanted or kind in wanted)


def _graphs(model: ir.Model) -> list[ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]
