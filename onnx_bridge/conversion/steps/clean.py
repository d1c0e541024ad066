"""Step 2: clean the model with the passes of the pipeline, and write it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import FileInfo
from onnx_bridge.conversion.cleaning import check_ranks, rewrite
from onnx_bridge.conversion.compiling.partition import with_inferred_types
from onnx_bridge.conversion.precision.precision import precision_notes
from onnx_bridge.conversion.precision.quantized_products import QuantizedProducts
from onnx_bridge.conversion.reuse import EarlierBundle, PassResults
from onnx_bridge.conversion.steps.resolve import Plan
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Stage
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.run_time import work_seconds
from passes.graphs.cost import Work, work
from passes.legalize.legalize import Legalize


@dataclass(frozen=True)
class CleanedModel:
    """A cleaned model, in memory and in the staging folder.

    Attributes:
        verdicts: MIGraphX's verdicts on its nodes.
        path: its file.
        files: its file and its external data, measured in the background.
        products: the quantized products; None unless products were quantized in the model.
    """

    plan: Plan
    verdicts: ProbedRuntime
    model: ir.Model
    path: Path
    files: tuple[Future[FileInfo], ...]
    results: PassResults
    products: QuantizedProducts | None

    @property
    def run_seconds(self) -> float:
        """The estimated seconds of a run."""
        return work_seconds(sum((work(node) for node in self.model.graph), Work()), self.plan.runtime)

    @property
    def notes(self) -> list[str]:
        return [*self.results.notes, *(self.products.notes if self.products else ())]


def clean(plan: Plan, rewritten: Collection[str] = ()) -> CleanedModel:
    """Clean the model, or take the cleaned model of the bundle in OUT.

    Args:
        plan: what is converted, and how.
        rewritten: the names of nodes that are rewritten, whatever MIGraphX makes of them.

    Raises:
        InputError: the model or the request is wrong, or a file cannot be written.
        RuntimeFailure: MIGraphX cannot be started.
    """
    request, stopwatch = plan.request, plan.stopwatch
    verdicts = ProbedRuntime(
        plan.runtime,
        cache=request.cache,
        progress=stopwatch.progress,
        timeout=request.timeout,
        budget=request.probe_budget,
        compile_for=plan.target,
        rehearsal=plan.rehearsal,
        provider=plan.provider,
    )
    verdicts.rewritten = rewritten
    results = _reused(plan) or _cleaned(plan, verdicts)
    products = plan.precision.quantized_products(results.model)
    if products is not None:
        results = replace(results, model=products.model, files=())
    with stopwatch(Stage.WRITE):
        path = plan.folder / f"{plan.source.name}.onnx"
        with_inferred_types(results.model)
        try:
            results.write(path)
        except InputError as error:  # it names a file of the staging folder
            raise InputError(error.what, where=str(plan.out), hint=error.hint) from error
        written = [] if plan.program_only else sorted(plan.folder.iterdir())  # the model sorts before its data
    files = tuple(plan.background.submit(FileInfo.of, file) for file in written)
    return CleanedModel(plan, verdicts, results.model, path, files, results, products)


def _reused(plan: Plan) -> PassResults | None:
    if not plan.request.reuse or not plan.request.cache or plan.provider is not None:
        return None
    earlier = EarlierBundle(plan.out)
    if earlier.cleaning is None:
        return None
    with plan.stopwatch(Stage.REUSE):
        results = earlier.cleaned(plan.source.name, plan.cleaning_key)
    if results is None:
        del plan.stopwatch.seconds[Stage.REUSE.value]
    return results


def _cleaned(plan: Plan, verdicts: ProbedRuntime) -> PassResults:
    request = plan.request
    verdicts.launch()
    with plan.stopwatch(Stage.CLEAN):
        model = plan.source.model()
        cleaned = rewrite(
            model,
            request.cleaning,
            plan.precision.pipeline(plan.pipeline, model),
            target=verdicts,
            progress=lambda name: plan.stopwatch.progress(Stage.LEGALIZE if name == Legalize.name else name),
        )
        check_ranks(cleaned.model)
    notes = [*cleaned.notes, *precision_notes(cleaned.steps, request.precision)]
    passes = [step.to_json() for step in cleaned.steps]
    return PassResults(cleaned.model, str(cleaned.pipeline), passes, notes, cleaned.chosen)
