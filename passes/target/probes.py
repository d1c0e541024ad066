"""Probes: small sub-models that a runtime is asked about, cut out of a model or of a proposal.

A node alone tells little: TopK is rejected where its k is an input and accepted where k follows from shapes. So a probe
takes along the node's *constant cone* (what its operands are computed from, back to initializers and shapes), its
subgraphs with the values that they capture, and the functions that it calls. All values get names of the probe's own,
so two nodes that mean the same give the same bytes, whose hash is the probe's signature.

Constants that can steer an operator keep their elements. Others, weights above all, become inputs of the probe: what a
parser says rarely depends on them, and they need not be copied. Where it does, ``to_proto(full=True)`` tells.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from graphlib import TopologicalSorter

import onnx
import onnx_ir as ir

from passes.analysis.cost import estimate
from passes.analysis.randomness import DRAWS, RANDOM, is_random
from passes.core import graphs
from passes.core.graphs import Scope
from passes.target.suspects import suspects

__all__ = ["RANDOM", "Probe", "fixed_values", "suspects"]

_IR_VERSION = 10
_WHOLE_BYTES = 1024
"""Integers and bools of up to this many bytes may be shapes, axes, indices: they keep their elements."""
_FLOAT_BYTES = 64
"""Floats of up to this many bytes may be scales, limits, fill values: they keep their elements."""
_CONE_ELEMENTS = 256
"""Computed constants larger than this are cut off: they become inputs, as large initializers do."""
_CONE_NODES, _WHOLE_CONE_NODES = 64, 4096
"""How many nodes are looked at in search of constants, at first and in full."""
_PLAIN_DTYPES = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL"
_BEYOND = frozenset((ir.DataType.STRING, ir.DataType.FLOAT4E2M1))
"""Dtypes whose arrays do not have an element a number."""
_PLAIN = frozenset(ir.DataType[name] for name in _PLAIN_DTYPES.split())
"""Dtypes of which a runtime that takes inputs also takes constants."""


class Probe:
    """Some nodes as a model of their own.

    Attributes:
        nodes: them, in topological order, without Constant nodes.
        scope: where they are, or would be.
        inputs: values that the probe takes from outside and that are not constant.
        outputs: values that it must compute.
        instead_of: a probe whose outputs its own are to equal; None where it is measured by itself.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], scope: Scope, outputs: Sequence[ir.Value], instead_of: Probe | None = None
    ) -> None:
        self.nodes = tuple(nodes)
        self.instead_of = instead_of
        self.scope = scope
        self.outputs = tuple(outputs)
        self._cut = _Cut(self.nodes, scope, full=False)
        self.inputs = tuple(self._cut.inputs)

    @classmethod
    def of(
        cls,
        nodes: Sequence[ir.Node],
        scope: Scope,
        outputs: Sequence[ir.Value] | None = None,
        *,
        instead_of: Probe | None = None,
    ) -> Probe:
        """The probe of nodes that are in a graph, or of proposed ones, which are in none.

        Args:
            nodes: in topological order.
            scope: where they are, or would be.
            outputs: what must be computed; others than outputs of the nodes are left out. Default: everything that is
                used outside of the nodes or is an output of the graph; where there is nothing of that kind, all
                that the nodes themselves do not use.
            instead_of: what the nodes are to replace, with as many outputs.
        """
        within = set(nodes)
        made = [value for node in nodes for value in node.outputs if value.name != ""]
        if outputs is not None:
            wanted = [value for value in dict.fromkeys(outputs) if value.producer() in within]
        else:
            wanted = [value for value in made if _is_used_outside(value, within)]
            wanted = wanted or [value for value in made if not value.uses()]
        kept = [node for node in nodes if graphs.constant_of(node) is None or node.outputs[0] in wanted]
        return cls(kept, scope, wanted, instead_of)

    @cached_property
    def signature(self) -> str:
        """The same for probes that mean the same, whatever their names.

        It covers operators, attributes, subgraphs, functions, dtypes and shapes of inputs and outputs, the elements of
        constants that keep them and the kind of others, and the opsets; and the whole of a constant cone that the probe
        is too small for, since a runtime may be shown that as well, and refuse it.
        """
        data = _Writer(self._cut, self.outputs, carry=False).model.SerializeToString()
        if self._cut.cut_off:
            whole = _Cut(self.nodes, self.scope, full=True)
            data += _Writer(whole, self.outputs, carry=False).model.SerializeToString()
        if self.instead_of is not None:
            data += f"{self.instead_of.signature} {self.places}".encode()
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    @property
    def places(self) -> list[int] | None:
        """Where each of its inputs stands among those of what it replaces; None where that does not have them all."""
        return None if self.instead_of is None else _places(self.inputs, self.instead_of.inputs)

    @property
    def full_places(self) -> list[int] | None:
        """The same for the inputs that ``to_proto(full=True)`` has: without those whose cone is then carried whole."""
        if self.instead_of is None:
            return None
        return _places(
            _Cut(self.nodes, self.scope, full=True).inputs,
            _Cut(self.instead_of.nodes, self.instead_of.scope, full=True).inputs,
        )

    @cached_property
    def problem(self) -> str | None:
        """Why it cannot be put to a runtime at all; None where it can.

        Outputs of unknown shape are no obstacle: what is unknown cannot be checked, but a rejection is one.
        """
        for node in graphs.with_nested(self.nodes):
            if any(attribute.is_ref() for attribute in node.attributes.values()):
                return f"{node.op_type} is in a function, whose caller decides on its attributes"
        if self.chance is not None:
            return self.chance
        for value in self.inputs:
            said = _no_tensor(value) or self._unknown(value)
            if said:
                return said
        for value, tensor in self._cut.constants.items():
            if tensor.dtype == ir.DataType.STRING:
                return f"{value.name} is of strings"
        return next((said for value in self.outputs if (said := _no_tensor(value))), None)

    @cached_property
    def chance(self) -> str | None:
        """Which of its nodes draws anew in each run, which no single run of a probe shows; None where none does."""
        found = next((node for node in self._all_nodes() if is_random(node, self.scope)), None)
        return None if found is None else f"{found.op_type} {DRAWS}"

    @property
    def is_local(self) -> bool:
        """Whether it is made of its nodes and their operands alone, without a cone, subgraphs, and functions."""
        functions = self.scope.model.functions
        return not self._cut.cone and all(
            next(graphs.subgraphs(node), None) is None and node.op_identifier() not in functions for node in self.nodes
        )

    @property
    def operators(self) -> frozenset[tuple[str, str]]:
        """The (domain, operator) pairs of its nodes, at any depth, without its cone's."""
        return frozenset((node.domain, node.op_type) for node in self._all_nodes())

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The dtype of one of its inputs or outputs; None where unknown."""
        return self.scope.dtype(value)

    def shape(self, value: ir.Value) -> tuple[int | None, ...] | None:
        """The shape of one of its inputs or outputs; None, or dimensions of None, where unknown."""
        shape = self.scope.shape(value)
        return None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)

    def to_proto(self, *, full: bool = False) -> onnx.ModelProto:
        """The probe as a model.

        Its graph inputs are ``inputs`` in their order, then, unless ``full``, the constants without their elements; its
        outputs are ``outputs``.

        Args:
            full: with the elements of every constant, and with the whole of every constant cone.
        """
        cut = _Cut(self.nodes, self.scope, full=True) if full else self._cut
        return _Writer(cut, self.outputs, carry=True, whole=full).model

    @cached_property
    def data_bytes(self) -> int:
        """How much ``to_proto(full=True)`` carries in elements of constants."""
        return sum(tensor.nbytes for tensor in _Cut(self.nodes, self.scope, full=True).constants.values())

    @property
    def has_all_data(self) -> bool:
        """Whether ``to_proto()`` has all that ``full`` adds."""
        constants = self._cut.constants.values()
        return not self._cut.cut_off and all(_keeps_elements(each) or each.dtype not in _PLAIN for each in constants)

    def multiply_adds(self) -> int | None:
        """Roughly how much there is to compute; None where that depends on the data."""
        cut = self._cut
        values = [*cut.inputs, *(value for node in self._all_nodes() for value in node.outputs if value.name != "")]
        shapes = [self.scope.shape(value) for value in values]
        if any(shape is None or not shape.is_static() for shape in shapes):
            return None
        work = [estimate(node) for node in cut.cone]
        for node in self.nodes:
            turns = self._turns(node)
            if turns is None:
                return None
            work.append(turns * estimate(node))
        return sum(work)

    def _turns(self, node: ir.Node) -> int | None:
        """How often a node's body runs; 1 where it has none."""
        if node.domain == "" and node.op_type == "Loop":
            counts = graphs.ints(self._cut.constants.get(node.inputs[0])) if node.inputs[0] is not None else None
            return counts[0] if counts else None
        if node.domain == "" and node.op_type == "Scan":
            sizes = [max(shape.numpy(), default=1) for value in node.inputs if (shape := self.scope.shape(value))]
            return max(sizes, default=1)
        return 1

    def _unknown(self, value: ir.Value) -> str | None:
        shape = self.scope.shape(value)
        if self.scope.function is not None:
            return f"{value.name} is in a function, where shapes differ from call to call"
        if graphs.DISPUTED in value.meta:
            return f"the declared shape of {value.name} contradicts what ONNX infers"
        if shape is None:
            return f"the shape of {value.name} is not known"
        if not shape.is_static():
            return f"the shape of {value.name} is not fixed: {shape}"
        return None

    def _all_nodes(self) -> Iterable[ir.Node]:
        pending, called = list(self.nodes), set()
        while pending:
            for node in graphs.with_nested([pending.pop()]):
                yield node
                function = self.scope.model.functions.get(node.op_identifier())
                if function is not None and node.op_identifier() not in called:
                    called.add(node.op_identifier())
                    pending.extend(function)


def _places(values: Iterable[ir.Value], among: Iterable[ir.Value]) -> list[int] | None:
    """Where each value stands among others; None where these do not have them all."""
    places = {value: index for index, value in enumerate(among)}
    found = [places.get(value) for value in values]
    return None if None in found else [each for each in found if each is not None]


def _is_used_outside(value: ir.Value, within: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in within for use in value.uses())


def _no_tensor(value: ir.Value) -> str | None:
    if value.type is None or isinstance(value.type, ir.TensorType):
        if value.dtype in _BEYOND:
            return f"{value.name} is of {'strings' if value.dtype == ir.DataType.STRING else value.dtype.name.lower()}"
        return None
    return f"{value.name} is no tensor but {value.type}"


def _keeps_elements(tensor: ir.TensorProtocol) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return True
    whole = tensor.dtype.is_integer() or tensor.dtype == ir.DataType.BOOL
    return tensor.nbytes <= (_WHOLE_BYTES if whole else _FLOAT_BYTES)


def fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """The values of a graph's nodes, in their order, that depend on shapes and constants alone."""
    found: set[ir.Value] = set()
    for node in graph:
        shape = node.domain == "" and node.op_type in ("Shape", "Size")
        known = all(value in found or value.is_initializer() for value in _operands(node))
        if shape or (known and (node.domain, node.op_type) not in RANDOM):
            found.update(node.outputs)
    return found


class _Cut:
    """What the nodes of a probe depend on: constants, the nodes that compute constants, and inputs.

    Attributes:
        constants: tensors by value.
        cone: nodes that compute constants.
        inputs: all else, in order.
        full: whether constants of any size were followed.
        cut_off: whether a value that may be constant became an input.
    """

    def __init__(self, nodes: Sequence[ir.Node], scope: Scope, *, full: bool) -> None:
        self.nodes, self.scope, self.full = nodes, scope, full
        self.constants: dict[ir.Value, ir.TensorProtocol] = {}
        self.cone: dict[ir.Node, None] = {}
        self.inputs: dict[ir.Value, None] = {}
        self.cut_off = False
        self._within = set(nodes)
        self._proven: set[ir.Value] = set()
        self._left = _CONE_NODES if not full else _WHOLE_CONE_NODES
        for node in nodes:
            for value in _operands(node):
                self._take(value)

    def ordered(self) -> Iterable[ir.Node]:
        """The cone and the nodes, each after those that it needs; a cone may need the shapes of what the nodes make."""
        if not self.cone:
            return self.nodes
        chosen = {*self.cone, *self.nodes}
        needs = {
            node: [maker for value in _operands(node) if (maker := value.producer()) in chosen]
            for node in (*self.cone, *self.nodes)
        }
        return TopologicalSorter(needs).static_order()

    def _take(self, value: ir.Value) -> None:
        """Sort in a value that is needed, and what it is computed from if it is constant."""
        pending = [value]
        while pending:
            value = pending.pop()
            if value.producer() in self._within or value in self.constants or value in self.inputs:
                continue
            tensor = self._tensor(value)
            if tensor is not None:
                self.constants[value] = tensor
            elif self._is_constant(value):
                node = value.producer()
                if node is not None and node not in self.cone:
                    self.cone[node] = None
                    pending.extend(_operands(node))
            else:
                self.inputs[value] = None

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = self.scope.constant(value)
        if tensor is None and value.producer() is None and not value.is_graph_input() and value.graph is None:
            return value.const_value  # proposed, and in no graph yet
        return tensor

    def _is_constant(self, value: ir.Value) -> bool:
        """Whether a value that no tensor is known for is computed from constants and fixed shapes alone."""
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            if current in self._proven or self._tensor(current) is not None:
                continue
            needed = self._needed(current)
            if needed is None:
                return False
            pending.extend(operand for operand in needed if operand not in seen)
            seen.update(needed)
        self._proven |= seen
        return True

    def _needed(self, value: ir.Value) -> list[ir.Value] | None:
        """What must be constant for a value to be; None where nothing makes it so, or where the search ends."""
        node = value.producer()
        if node is None or node in self._within or is_random(node, self.scope):
            return None
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            shape = self.scope.shape(node.inputs[0])
            return [] if shape is not None and shape.is_static() else None
        if next(graphs.subgraphs(node), None) is not None or not node.inputs:
            return None
        self._left -= 1
        shape = self.scope.shape(value)
        large = shape is not None and shape.is_static() and math.prod(shape.numpy()) > _CONE_ELEMENTS
        if self._left < 0 or (large and not self.full):
            self.cut_off = True
            return None
        return [operand for operand in node.inputs if operand is not None]


def _operands(node: ir.Node) -> Iterator[ir.Value]:
    """What a node takes from outside of itself: inputs, and what its subgraphs capture."""
    for value in node.inputs:
        if value is not None:
            yield value
    if next(graphs.subgraphs(node), None) is not None:
        yield from graphs.captures(node)


@lru_cache(4096)
def _tensor_type(dtype: int, dims: tuple[int | None, ...] | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, dims)


class _Writer:
    """Writes a probe as a model; values are named in the order in which they come.

    Args:
        cut: the probe's nodes and what they depend on.
        outputs: what it must compute.
        carry: whether constants of unusual dtypes keep their elements even where others do not.
        whole: whether all constants do.
    """

    def __init__(self, cut: _Cut, outputs: Sequence[ir.Value], *, carry: bool, whole: bool = False) -> None:
        self.cut, self.carry, self.whole = cut, carry, whole
        self.model = onnx.ModelProto(ir_version=_IR_VERSION)
        self.model.graph.name = "probe"
        self._names: dict[ir.Value, str] = {}
        self._domains = {""}
        self._functions: set[ir.OperatorIdentifier] = set()
        for value in cut.inputs:
            self._value(value, self.model.graph.input.add())
        for value, tensor in cut.constants.items():
            self._constant(value, tensor, self.model.graph)
        for node in cut.ordered():
            self._node(node, self.model.graph.node.add())
        for value in outputs:
            self._value(value, self.model.graph.output.add())
        self._imports()

    def _name(self, value: ir.Value | None) -> str:
        if value is None or value.name == "":
            return ""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"v{len(self._names)}"
        return name

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol, graph: onnx.GraphProto) -> None:
        unusual = self.carry and tensor.dtype not in _PLAIN
        if self.whole or unusual or _keeps_elements(tensor):
            graph.initializer.append(graphs.tensor_proto(tensor, self._name(value)))
            return
        name = self._names[value] = f"w{len(self._names)}"  # another kind of input than one that is not constant
        kind = _tensor_type(tensor.dtype.value, tensor.shape.numpy())
        self.model.graph.input.add(name=name, type=kind)

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        proto.input.extend([self._name(value) for value in node.inputs])
        proto.output.extend([self._name(value) for value in node.outputs])
        self._domains.add(node.domain)
        for name in sorted(node.attributes):
            attribute = node.attributes[name]
            if attribute.is_ref():
                proto.attribute.append(ir.serde.serialize_attribute(attribute))
                continue
            match attribute.type:
                case ir.AttributeType.TENSOR:
                    tensor = graphs.tensor_proto(attribute.value, "")
                    proto.attribute.add(name=name, type=onnx.AttributeProto.TENSOR, t=tensor)
                case ir.AttributeType.GRAPH:
                    self._graph(attribute.value, proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g)
                case ir.AttributeType.GRAPHS:
                    inner = proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPHS)
                    for graph in attribute.value:
                        self._graph(graph, inner.graphs.add())
                case _:
                    proto.attribute.append(ir.serde.serialize_attribute(attribute))
        function = self.cut.scope.model.functions.get(node.op_identifier())
        if function is not None:
            self._function(function)

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.name = "subgraph"
        for value in graph.inputs:
            self._value(value, proto.input.add())
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self._constant(value, value.const_value, proto)
        for node in graph:
            self._node(node, proto.node.add())
        for value in graph.outputs:
            self._value(value, proto.output.add())

    def _function(self, function: ir.Function) -> None:
        if function.identifier() in self._functions:
            return
        self._functions.add(function.identifier())
        for node in function.all_nodes():
            inner = self.cut.scope.model.functions.get(node.op_identifier())
            if inner is not None:
                self._function(inner)
        ir.serde.serialize_function_into(self.model.functions.add(), function)

    def _value(self, value: ir.Value, proto: onnx.ValueInfoProto) -> None:
        name = self._name(value)
        scope = self.cut.scope
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            ir.serde.serialize_value_into(proto, value)
        elif (dtype := scope.dtype(value)) is not None:
            shape = scope.shape(value)
            dims = None if shape is None else tuple([dim if isinstance(dim, int) else None for dim in shape])
            proto.type.CopyFrom(_tensor_type(dtype.value, dims))
        proto.name = name

    def _imports(self) -> None:
        """The opsets of the domains in use, and the highest of all, which some runtimes take for every domain's."""
        imports: Mapping[str, int] = self.cut.scope.opset_imports
        highest = max(imports, key=imports.__getitem__, default="")
        for domain in sorted({*self._domains, highest}):
            self.model.opset_import.add(domain=domain, version=imports.get(domain, 1))
