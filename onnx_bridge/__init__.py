"""ONNX Bridge: any ONNX model, cleaned, compiled by MIGraphX, and proven to compute the same thing.

    import onnx_bridge

    bundle = onnx_bridge.convert("model.onnx", "out", dims={"batch": 1})
    outputs = bundle({"x": array})
    assert onnx_bridge.check(bundle).passed

Everything is imported on first use: ``import onnx_bridge`` itself is quick and loads no heavy library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onnx_bridge.benchmarking.benchmark import bench
    from onnx_bridge.checking import check
    from onnx_bridge.cleaning import clean
    from onnx_bridge.conversion.bundle import Bundle, load
    from onnx_bridge.conversion.convert import convert
    from onnx_bridge.diagnosis import Diagnosis, doctor
    from onnx_bridge.difference import diff
    from onnx_bridge.explanation import explain
    from onnx_bridge.exporting.export import Exported, export
    from onnx_bridge.inspection import inspect
    from onnx_bridge.int8_forecast import Forecast, forecast
    from onnx_bridge.parity.bisect import bisect
    from onnx_bridge.parity.reduce import reduce
    from onnx_bridge.parity.report import Report
    from onnx_bridge.torch import lower
    from onnx_bridge.tuning.keeping import find_keep
    from onnx_bridge.tuning.tune import tune

__all__ = [
    "Bundle",
    "Diagnosis",
    "Exported",
    "Forecast",
    "Report",
    "__version__",
    "bench",
    "bisect",
    "check",
    "clean",
    "convert",
    "diff",
    "doctor",
    "explain",
    "export",
    "find_keep",
    "forecast",
    "inspect",
    "load",
    "lower",
    "reduce",
    "tune",
]

_HOMES = {
    "Bundle": "onnx_bridge.conversion.bundle",
    "Diagnosis": "onnx_bridge.diagnosis",
    "Exported": "onnx_bridge.exporting.export",
    "Forecast": "onnx_bridge.int8_forecast",
    "Report": "onnx_bridge.parity.report",
    "bench": "onnx_bridge.benchmarking.benchmark",
    "bisect": "onnx_bridge.parity.bisect",
    "check": "onnx_bridge.checking",
    "clean": "onnx_bridge.cleaning",
    "convert": "onnx_bridge.conversion.convert",
    "diff": "onnx_bridge.difference",
    "doctor": "onnx_bridge.diagnosis",
    "explain": "onnx_bridge.explanation",
    "export": "onnx_bridge.exporting.export",
    "find_keep": "onnx_bridge.tuning.keeping",
    "forecast": "onnx_bridge.int8_forecast",
    "inspect": "onnx_bridge.inspection",
    "load": "onnx_bridge.conversion.bundle",
    "lower": "onnx_bridge.torch",
    "reduce": "onnx_bridge.parity.reduce",
    "tune": "onnx_bridge.tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
