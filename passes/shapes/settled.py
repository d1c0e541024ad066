"""The state of a model's declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(kw_only=True)
class Settled:
    """The state of a model's declarations, to the extent that inference has looked at them.

    Attributes:
        contradictions: what the model declares of its values and is not so, a sentence by the name of each value.
        settled: the model whose declarations `passes.shapes.declarations.settle` has corrected, as long as there is
            nothing new to correct.
        inferred: the inferred types and shapes of the values of ``settled``, if what is declared would add nothing.
        complete: whether inference confirms all that ``settled`` declares.
    """

    contradictions: dict[str, str] = field(default_factory=dict)
    settled: ir.Model | None = None
    inferred: Mapping[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]] | None = None
    complete: bool = False

    def has_changed(self, *, declares: bool) -> None:
        """Note that ``settled`` was changed, and whether types or shapes were declared that inference did not find."""
        self.inferred = None
        if declares or not self.complete:
            self.settled = None
