"""The pass ``legalize``; without a runtime to ask, what it takes to ask one is not imported."""

from __future__ import annotations

import onnx_ir as ir

from passes.rewriting.base import Context, Exactness, Pass, Result, Skip


class Legalize(Pass):
    """Rewrite what the runtime rejects, crashes on or computes wrongly into operators that it runs correctly."""

    name = "legalize"
    exactness = Exactness.ROUNDING

    def run(self, model: ir.Model, context: Context) -> Result:
        """Judge and legalize the nodes of the main graph until a round changes nothing."""
        if context.target is None:
            return Result(model, skips=[Skip("there is no runtime to ask")])
        from passes.legalize.driver import legalize

        return legalize(model, context)
