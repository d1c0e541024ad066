"""ONNX's own evaluator as a second reference, for outputs that differ from ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.evaluations import NoReference, run_file
from passes.isolation.limits import Limits

BY_ONNX = "compared with ONNX's own evaluator, as ONNX Runtime differs from both"


def second_opinion(
    path: Path,
    sample: Mapping[str, Value],
    outputs: Mapping[str, Value],
    tolerances: Tolerances,
    limits: Limits,
    runs: KeptRuns,
) -> Comparison | None:
    """Return the comparison with ONNX's own evaluator if they agree: ONNX Runtime may be wrong or less accurate.

    Args:
        path: the original.
        sample: its inputs.
        outputs: outputs to compare, which differ from ONNX Runtime's.
        runs: the evaluator's runs that are kept.

    Raises:
        NoReference: the evaluator exceeded a limit.
    """
    try:
        expected = runs.outputs(sample, lambda: run_file(path, [sample], by_onnx=True, limits=limits)[0])
    except NoReference as error:
        if error.is_limit:
            raise
        return None
    compared = compare(outputs, expected, tolerances)
    return compared if compared.passed else None
