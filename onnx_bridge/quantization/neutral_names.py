"""Names of values and nodes while a quantizer has a model.

    w, b, w_scale   →   v0v, v1v, v2v   →   quantizer: v0v_scale, v1v0, …   →   w, b, w_scale, w_scale_2, b0, …

Quantizers derive names from those of the model (``w_scale`` from ``w``, ``b0`` from ``b``) without asking whether they
are taken. A neutral name ends as it begins, with letters that no name of the model has before a digit: nothing that is
derived from one is another.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from passes.graphs.scopes import Names, Scope, values_of


class NeutralNames:
    """Gives neutral names to all values and nodes of a model without functions, and takes them back from its result."""

    def __init__(self, model: ir.Model) -> None:
        values = list(dict.fromkeys(values_of(model)))
        items: list[ir.Value | ir.Node] = [*values, *Scope(model, model.graph).nodes()]
        named = [item for item in items if item.name]
        mark = "v"
        while any(re.search(rf"{mark}\d", str(item.name)) for item in named):
            mark += "v"
        tensors = {value: value.const_value for value in values}
        for value in values:
            value.const_value = None  # these may be the tensors of the caller's model: their names stay
        self._originals: dict[str, str] = {}
        for number, item in enumerate(named):
            neutral = f"{mark}{number}{mark}"
            self._originals[neutral], item.name = str(item.name), neutral
        for value, tensor in tensors.items():
            value.const_value = tensor
        self.inputs = {self._originals[str(value.name)]: str(value.name) for value in model.graph.inputs}
        self._pattern = re.compile(rf"{mark}\d+{mark}")

    def original(self, text: str) -> str:
        """Return a name, or a sentence, with the original names."""
        return self._pattern.sub(lambda match: self._originals.get(match[0], match[0]), text)

    def restore(self, model: ir.Model) -> None:
        """Give the original names back; another name that is one of them gets a number."""
        scope = Scope(model, model.graph)
        names = Names(scope)
        for items, unique in (
            (list(dict.fromkeys(values_of(model))), names.value),
            (list(scope.nodes()), names.node),
        ):
            kept = {item: self._originals[str(item.name)] for item in items if item.name in self._originals}
            for name in kept.values():
                unique(name)
            for item in items:
                name = self.original(str(item.name or ""))
                if item not in kept and (name != item.name or name in kept.values()):
                    item.name = unique(name)
            for item, name in kept.items():
                item.name = name
