"""PyTorch's choices in a run of a module, as values of its export.

    topk, sort, argsort    TopK: operand, values and indices
    argmax, max(dim)       ArgMax: operand and indices; argmin, min(dim): ArgMin

Exporters keep the order of a trace, so that the nth of these operators is the nth of the nodes that choose. Those that
nothing reads are no nodes: of max(dim), often the values alone are read. If the two sequences differ, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onnx_bridge.core.values import Value
from onnx_bridge.torch.modules.calls import FlatModule, run_module
from onnx_bridge.torch.modules.tensors import to_array

_NODES = {
    "aten::topk": "TopK",
    "aten::sort": "TopK",
    "aten::argsort": "TopK",
    "aten::argmax": "ArgMax",
    "aten::max.dim": "ArgMax",
    "aten::argmin": "ArgMin",
    "aten::min.dim": "ArgMin",
}
"""By operator, with or without its overload."""


@dataclass(frozen=True)
class RecordedChoices:
    """PyTorch as the side that is compared with its export (`onnx_bridge.reference.comparison.inside.Tested`).

    ``known`` has the operands and results of choices, and the outputs, by their names in the graph.
    """

    known: Mapping[str, Value]

    @classmethod
    def of(
        cls, model: ir.Model, flat: FlatModule, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, Value]
    ) -> RecordedChoices | None:
        """Run a module on ``inputs`` and record its choices; None if they are not those of the graph.

        ``outputs`` are the module's, by their names in the graph.
        """
        with _Recorder() as recorder:
            recorder.read(run_module(flat, inputs).tensors)
        nodes = [node for node in model.graph if node.domain == "" and node.op_type in _NODES.values()]
        choices = recorder.found()
        if [node.op_type for node in nodes] != [kind for kind, _ in choices]:
            return None
        known = dict(outputs)
        for node, (_, arrays) in zip(nodes, choices, strict=True):
            values = [node.inputs[0], *node.outputs]
            known |= {str(value.name): array for value, array in zip(values, arrays, strict=True) if value is not None}
        return cls(known)

    @property
    def names(self) -> Sequence[str]:
        return list(self.known)

    def values(self, sample: Mapping[str, Value], names: Sequence[str]) -> Mapping[str, Value]:
        return self.known


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operand and the results of each operator that chooses."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[tuple[str, list[Value], list[torch.Tensor]]] = []
        self._unread: set[int] = set()

    def found(self) -> list[tuple[str, list[Value]]]:
        """Return operators of nodes with the values of their choices, in order, except choices that nothing reads."""
        return [
            (kind, values)
            for kind, values, results in self._made
            if any(id(tensor) not in self._unread for tensor in results)
        ]

    def read(self, values: Any) -> None:
        """Note which results are read; ``values`` is a tree with tensors."""
        self._unread.difference_update(map(id, tree_leaves(values)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read((args, kwargs))
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        kind = _NODES.get(f"{schema.name}.{schema.overload_name}") or _NODES.get(schema.name)
        if kind is not None:
            operand, indices = args[0], result[-1] if isinstance(result, tuple) else result
            tensors, results = [operand, indices], [indices]
            if kind == "TopK":
                axis = _axis(schema, args, kwargs or {})
                tensors = [operand, torch.take_along_dim(operand, indices, axis), indices]
                results = list(result) if isinstance(result, tuple) else results
            # copied, since they may be changed in place
            values: list[Value] = [to_array(tensor.detach().clone()) for tensor in tensors]
            self._made.append((kind, values, results))
            self._unread.update(map(id, results))  # which live as long as they are noted
        return result


def _axis(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    position = [argument.name for argument in schema.arguments].index("dim")
    given = args[position] if position < len(args) else kwargs.get("dim", -1)
    return int(given)
