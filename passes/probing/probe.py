"""Probes: small sub-models that a runtime is given to judge, cut out of a model or of a proposal.

A node alone tells little: TopK is rejected if its k is an input and accepted if k follows from shapes. So a probe
includes the *constant cone* of the nodes (what their operands are computed from, back to initializers and shapes),
their subgraphs with the values that these capture, and the functions that they call. Nodes that mean the same give the
same bytes, whatever their names; the hash of the bytes is the probe's signature.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import onnx
import onnx_ir as ir

from passes.graphs.cost import Work, work
from passes.graphs.dependencies import Dependencies
from passes.graphs.limits import called_functions
from passes.graphs.matching import has_references
from passes.graphs.randomness import RANDOM_REASON, is_random
from passes.graphs.scopes import DISPUTED, Scope
from passes.graphs.tensors import constant_of, ints
from passes.graphs.traversal import has_subgraphs, with_nested
from passes.graphs.value_ranges import ANY, Range, value_range
from passes.probing.probe_writer import INPUT_DTYPES, ProbeWriter, keeps_elements

_NO_ARRAYS = frozenset((ir.DataType.STRING, ir.DataType.FLOAT4E2M1))
"""Dtypes whose arrays do not have one element a number."""
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_CASTS = frozenset({("", "Cast"), ("", "CastLike")})
_SMALL = 64.0
"""The largest bound of a range that inputs are drawn from: those of a Clip may be the ends of a dtype."""
RANGE = "onnx_bridge.range"
"""In the ``meta`` of an input of a witness: the range of the value that it stands for."""
_UNKNOWN_TRIPS = 16
"""The assumed number of iterations of a loop that depends on the data."""


class Probe:
    """Some nodes as a model of their own.

    Attributes:
        nodes: the nodes, in topological order, without Constant nodes.
        scope: the scope of the nodes, now or later.
        inputs: the values from outside that are not constant.
        outputs: the values to compute.
        replaces: the probe whose outputs its own must equal; None if it is judged by itself.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], scope: Scope, outputs: Sequence[ir.Value], replaces: Probe | None = None
    ) -> None:
        self.nodes = tuple(nodes)
        self.replaces = replaces
        self.scope = scope
        self.outputs = tuple(outputs)
        self._dependencies = Dependencies(self.nodes, scope, full=False)
        self.inputs = tuple(self._dependencies.inputs)

    @classmethod
    def of(
        cls,
        nodes: Sequence[ir.Node],
        scope: Scope,
        outputs: Sequence[ir.Value] | None = None,
        *,
        replaces: Probe | None = None,
    ) -> Probe:
        """Return the probe of nodes that are in a graph, or of proposed ones, which are in none.

        Args:
            nodes: in topological order.
            scope: the scope of the nodes, now or later.
            outputs: the values to compute; only outputs of the nodes are kept. Default: all that are used outside of
                the nodes or are outputs of the graph; without any, all that the nodes themselves do not use.
            replaces: the probe of what the nodes replace, with as many outputs.
        """
        within = set(nodes)
        results = [value for node in nodes for value in node.outputs if value.name != ""]
        if outputs is not None:
            wanted = [value for value in dict.fromkeys(outputs) if value.producer() in within]
        else:
            wanted = [value for value in results if _is_used_outside(value, within)]
            wanted = wanted or [value for value in results if not value.uses()]
        kept = [node for node in nodes if constant_of(node) is None or node.outputs[0] in wanted]
        return cls(kept, scope, wanted, replaces)

    @cached_property
    def full_dependencies(self) -> Dependencies:
        """The dependencies of the nodes, with full constant cones."""
        cut_off = self._dependencies.cut_off
        return Dependencies(self.nodes, self.scope, full=True) if cut_off else self._dependencies

    @cached_property
    def signature(self) -> str:
        """Equal for probes that mean the same, whatever their names.

        It covers operators, attributes, subgraphs, functions, dtypes and shapes of inputs and outputs, the elements of
        constants that keep them, the types of other constants, and the opsets. If the constant cone was cut off, it
        covers the full one too, since the runtime's verdict may depend on that.
        """
        data = ProbeWriter(self._dependencies, self.outputs, unusual=False).model.SerializeToString()
        if self._dependencies.cut_off:
            data += ProbeWriter(self.full_dependencies, self.outputs, unusual=False).model.SerializeToString()
        if any(self.input_ranges):
            data += f"{self.input_ranges}".encode()
        if self.replaces is not None:
            data += f"{self.replaces.signature} {self.input_indices(full=False)}".encode()
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    @cached_property
    def input_ranges(self) -> list[Range | None]:
        """The range in which the model keeps each input of ``to_proto(full=True)``, if it is small; else None.

        Ranges are asked for where other numbers are harder: sums of 16-bit floats that cancel have few right digits,
        and do not occur after a Softmax; nor does an infinity that a Cast would have to keep.
        """
        return [self._range(value) for value in self.full_dependencies.inputs]

    def _range(self, value: ir.Value) -> Range | None:
        if RANGE in value.meta:
            known: Range = value.meta[RANGE]
            return known
        matters = self.scope.dtype(value) in _HALVES or self.operators <= _CASTS
        interval = value_range(value, self.scope) if matters else ANY
        return interval if max(map(abs, interval)) <= _SMALL else None

    def input_indices(self, *, full: bool) -> list[int] | None:
        """Return the index of each input of `to_proto` among those of the probe that it replaces; None without one, or
        if some are not among them."""
        if self.replaces is None:
            return None
        inputs, others = (probe.full_dependencies.inputs if full else probe.inputs for probe in (self, self.replaces))
        indices = {value: index for index, value in enumerate(others)}
        return [indices[value] for value in inputs] if indices.keys() >= {*inputs} else None

    @cached_property
    def problem(self) -> str | None:
        """The reason why no runtime can judge the probe; None if one can.

        Outputs may have unknown shapes: they are not compared then, but a rejection is one.
        """
        for node in with_nested(self.nodes):
            if has_references(node):
                return f"{node.op_type} is in a function, whose caller supplies its attributes"
        if self.randomness is not None:
            return self.randomness
        for value in self.inputs:
            reason = _not_a_tensor(value) or self._unknown(value)
            if reason:
                return reason
        for value, tensor in self._dependencies.constants.items():
            if tensor.dtype == ir.DataType.STRING:
                return f"{value.name} holds strings"
        return next((reason for value in self.outputs if (reason := _not_a_tensor(value))), None)

    @cached_property
    def randomness(self) -> str | None:
        """The random node of the probe, which no single run shows; None without one."""
        random = next((node for node in self._all_nodes() if is_random(node, self.scope)), None)
        return None if random is None else f"{random.op_type} {RANDOM_REASON}"

    @property
    def is_local(self) -> bool:
        """Return whether the probe is its nodes and their operands alone, without a cone, subgraphs or functions."""
        functions = self.scope.model.functions
        return not self._dependencies.cone and all(
            not has_subgraphs(node) and node.op_identifier() not in functions for node in self.nodes
        )

    @property
    def operators(self) -> frozenset[tuple[str, str]]:
        """The (domain, operator) pairs of its nodes, at any depth, without those of its cone."""
        return frozenset((node.domain, node.op_type) for node in self._all_nodes())

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the dtype of one of its inputs or outputs; None if unknown."""
        return self.scope.dtype(value)

    def shape(self, value: ir.Value) -> tuple[int | None, ...] | None:
        """Return the shape of one of its inputs or outputs; None, or dimensions of None, if unknown."""
        shape = self.scope.shape(value)
        return None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)

    def to_proto(self, *, full: bool = False) -> onnx.ModelProto:
        """Return the probe as a model.

        Its graph inputs are ``inputs`` in their order, then, unless ``full``, the constants without their elements; its
        outputs are ``outputs``.

        Args:
            full: with the elements of every constant, and with full constant cones.
        """
        dependencies = self.full_dependencies if full else self._dependencies
        return ProbeWriter(dependencies, self.outputs, unusual=True, full=full).model

    @cached_property
    def data_bytes(self) -> int:
        """The bytes of all constants in ``to_proto(full=True)``."""
        return sum(tensor.nbytes for tensor in self.full_dependencies.constants.values())

    @cached_property
    def constants_digest(self) -> str:
        """The digest of the elements of all constants, which `signature` leaves out if there are many."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in self.full_dependencies.constants.values():
            digest.update(tensor.tobytes())
        return digest.hexdigest()

    @property
    def has_all_data(self) -> bool:
        """Return whether ``to_proto()`` and ``to_proto(full=True)`` are the same."""
        constants = self._dependencies.constants.values()
        return not self._dependencies.cut_off and all(
            keeps_elements(constant) or constant.dtype not in INPUT_DTYPES for constant in constants
        )

    @cached_property
    def work(self) -> Work:
        """The estimated work; sizes that depend on the data count as 1."""
        total = sum((work(node) for node in self._dependencies.cone), Work())
        return sum((work(node) * self._iterations(node) for node in self.nodes), total)

    @cached_property
    def bytes(self) -> int:
        """The bytes of its inputs, outputs, and constants; sizes that depend on the data count as 1."""
        total = self.data_bytes
        for value in (*self.inputs, *self.outputs):
            dtype, shape = self.dtype(value), self.shape(value)
            width = dtype.bitwidth if dtype is not None else 32
            total += math.prod(1 if dim is None else dim for dim in shape or ()) * width // 8
        return total

    def _iterations(self, node: ir.Node) -> int:
        """Return how often a node's body runs; 1 without a body."""
        if node.domain == "" and node.op_type == "Loop":
            counts = ints(self._dependencies.constants.get(node.inputs[0])) if node.inputs[0] is not None else None
            return counts[0] if counts else _UNKNOWN_TRIPS
        if node.domain == "" and node.op_type == "Scan":
            shapes = [shape for value in node.inputs if (shape := self.scope.shape(value)) is not None]
            return max((dim for shape in shapes for dim in shape if isinstance(dim, int)), default=1)
        return 1

    def _unknown(self, value: ir.Value) -> str | None:
        shape = self.scope.shape(value)
        if self.scope.function is not None:
            return f"{value.name} is in a function, where shapes differ from call to call"
        if DISPUTED in value.meta:
            return f"the declared shape of {value.name} contradicts what ONNX infers"
        if shape is None:
            return f"the shape of {value.name} is not known"
        if not shape.is_static():
            return f"the shape of {value.name} is not fixed: {shape}"
        return None

    def _all_nodes(self) -> Iterator[ir.Node]:
        yield from with_nested(self.nodes)
        for function in called_functions(self.nodes, self.scope.model).values():
            yield from with_nested(function)


def _is_used_outside(value: ir.Value, within: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in within for use in value.uses())


def _not_a_tensor(value: ir.Value) -> str | None:
    if value.type is None or isinstance(value.type, ir.TensorType):
        if value.dtype in _NO_ARRAYS:
            return f"{value.name} holds {'strings' if value.dtype == ir.DataType.STRING else value.dtype.name.lower()}"
        return None
    return f"{value.name} is not a tensor but {value.type}"
