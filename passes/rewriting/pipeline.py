"""Pipelines: ordered lists of passes, parsed from text, written as text, and run."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

import passes
from passes.core.errors import BridgeError, InputError, PassError
from passes.graphs.limits import check_limits
from passes.graphs.quantization import is_quantized
from passes.graphs.scopes import scopes
from passes.rewriting import spec
from passes.rewriting.base import Context, Exactness, Pass, Result
from passes.rewriting.old_signatures import raise_opset
from passes.rewriting.onnx_ir_passes import adapt
from passes.shapes.declarations import settle
from passes.shapes.validity import check_nodes


@dataclass(frozen=True)
class Step:
    """The work of one pass of a pipeline.

    Attributes:
        options: the options that differ from their defaults, by name, as JSON values.
        exactness: how much it may have changed numbers.
        nodes_before: the number of nodes before it, in all graphs, subgraphs and functions.
    """

    name: str
    options: dict[str, Any]
    exactness: Exactness
    seconds: float
    nodes_before: int
    nodes_after: int
    result: Result

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: rewrites as their number, rules as theirs by name, skips as the nodes of each reason."""
        skips: dict[str, list[str]] = {}
        for skip in self.result.skips:
            skips.setdefault(skip.reason, []).append(skip.node)
        return {
            "name": self.name,
            "options": self.options,
            "exactness": self.exactness.value,
            "seconds": self.seconds,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "rewrites": len(self.result.rewrites),
            "rules": dict(collections.Counter(rule for rewrite in self.result.rewrites for rule in rewrite.rules)),
            "skips": [{"reason": reason, "nodes": nodes} for reason, nodes in skips.items()],
        }


class Pipeline:
    """An ordered list of passes; ``str()`` gives the specification that `parse` reads.

    Args:
        passes: the passes, in order. Those of `onnx_ir` are adapted (`passes.rewriting.onnx_ir_passes`); a name stands
            for a pass without options, which is imported when it runs: not at all if it is for quantized models only.

    Attributes:
        items: the passes or their names, in order.
    """

    def __init__(self, passes: Iterable[Pass | ir.passes.PassBase | str] = ()) -> None:
        self.items = tuple(pass_ if isinstance(pass_, (Pass, str)) else adapt(pass_)() for pass_ in passes)

    @property
    def passes(self) -> tuple[Pass, ...]:
        return tuple(map(_imported, self.items))

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Read a specification, in which the name of a pipeline stands for its passes.

        Args:
            text: as in ``inline-functions,fold-constants{max-bytes=1MiB}``; the grammar is in `passes.rewriting.spec`.

        Raises:
            InputError: it is malformed, or a name, option or value in it is wrong.
        """
        items: list[Pass | str] = []
        for name, options in spec.parse(text):
            if name not in passes.PIPELINES:
                items.append(spec.build(name, options))
                continue
            if options:
                raise InputError(f"{name} is a pipeline, which has no options", where="pipeline")
            items += [spec.build(each, given) if given else each for each, given in spec.parse(passes.PIPELINES[name])]
        return cls(items)

    def __str__(self) -> str:
        return ",".join(item if isinstance(item, str) else spec.text_of(item) for item in self.items)

    def __repr__(self) -> str:
        return f"Pipeline.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __add__(self, other: Pipeline) -> Pipeline:
        return Pipeline((*self.items, *other.items))

    def run(
        self, model: ir.Model, context: Context | None = None, *, between: Callable[[Step], None] | None = None
    ) -> list[Step]:
        """Run the passes in order, on a model whose declarations are corrected (`passes.shapes.declarations`).

        Args:
            model: rewritten in place, unless a pass makes another; the last step has the final model.
            context: what passes are given besides the model; ``progress`` is notified of each pass.
            between: called after each pass.

        Raises:
            InputError: the options of a pass do not fit the model, or it exceeds the limits of `passes.graphs.limits`.
            PassError: a pass is defective.
        """
        check_limits(model)
        raise_opset(model)
        context = context or Context()
        steps: list[Step] = []
        unchanged_by: list[Pass] = []  # idempotent passes that have run since the model last changed
        quantized: bool | None = None  # whether the model is, as it is now

        def done(step: Step) -> None:
            steps.append(step)
            if between is not None:
                between(step)

        nodes = _count(model)
        if context.settled is not model:
            settle(model, context)
        for item in self.items:
            name = item if isinstance(item, str) else item.name
            if context.progress is not None:
                context.progress(name)
            if isinstance(item, str) and item in passes.QUANTIZED_ONLY:
                quantized = is_quantized(model) if quantized is None else quantized
                if not quantized:
                    done(Step(name, {}, Exactness.BITWISE, 0.0, nodes, nodes, Result(model)))
                    continue
            each = _imported(item)
            begin = time.perf_counter()
            try:
                result = Result(model) if each in unchanged_by else each.run(model, context)
            except (BridgeError, MemoryError):  # what does not fit is no defect of a pass
                raise
            except Exception as error:
                for scope in scopes(model):
                    check_nodes(scope.nodes(), scope, sized=True)
                raise PassError(
                    f"{type(error).__name__}: {error}",
                    where=f"pass {each.name}",
                    hint="this is a defect of the pass; leave it out of the pipeline",
                ) from error
            seconds = time.perf_counter() - begin
            changed = result.modified or result.model is not model
            model, before = result.model, nodes
            if changed:
                context.has_changed(declares=each.declares)
            quantized = None if changed else quantized
            unchanged_by = [*([] if changed else unchanged_by), *([each] if each.idempotent else [])]
            nodes = _count(model) if changed else nodes
            done(Step(each.name, spec.options_of(each), each.exactness, seconds, before, nodes, result))
        return steps


def _imported(item: Pass | str) -> Pass:
    return spec.build(item, {}) if isinstance(item, str) else item


def _count(model: ir.Model) -> int:
    return sum(1 for scope in scopes(model) for _ in scope.nodes())
