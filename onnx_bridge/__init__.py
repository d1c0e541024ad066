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
    from onnx_bridge.inspection import inspect
    from onnx_bridge.int8_forecast import Forecast, forecast
    from onnx_bridge.parity.report import Report
    from onnx_bridge.tuning.keeping import find_keep
    from onnx_bridge.tuning.tune import tune

__all__ = [
    "Bundle",
    "Diagnosis",
    "Forecast",
    "Report",
    "__version__",
    "bench",
    "check",
    "clean",
    "convert",
    "diff",
    "doctor",
    "explain",
    "find_keep",
    "forecast",
    "inspect",
    "load",
    "tune",
]

_HOMES = {
    "bench": "onnx_bridge.benchmarking.benchmark",
    "find_keep": "onnx_bridge.tuning.keeping",
    "tune": "onnx_bridge.tuning.tune",
    "Bundle": "onnx_bridge.conversion.bundle",
    "Report": "onnx_bridge.parity.report",
    "check": "onnx_bridge.checking",
    "clean": "onnx_bridge.cleaning",
    "convert": "onnx_bridge.conversion.convert",
    "Diagnosis": "onnx_bridge.diagnosis",
    "diff": "onnx_bridge.difference",
    "doctor": "onnx_bridge.diagnosis",
    "explain": "onnx_bridge.explanation",
    "forecast": "onnx_bridge.int8_forecast",
    "Forecast": "onnx_bridge.int8_forecast",
    "inspect": "onnx_bridge.inspection",
    "load": "onnx_bridge.conversion.bundle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
