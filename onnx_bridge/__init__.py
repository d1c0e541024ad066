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

from onnx_bridge.deferred import import_onnx_ir

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onnx_bridge.benchmarking.benchmark import bench
    from onnx_bridge.checking import check
    from onnx_bridge.cleaning import clean
    from onnx_bridge.conversion.batch import convert_all
    from onnx_bridge.conversion.bucket_conversion import convert_buckets
    from onnx_bridge.conversion.buckets import Buckets
    from onnx_bridge.conversion.bundle import Bundle, load
    from onnx_bridge.conversion.convert import convert
    from onnx_bridge.conversion.jobs import Settings
    from onnx_bridge.conversion.packing import pack, unpack
    from onnx_bridge.conversion.verifying import verify
    from onnx_bridge.diagnosis import Diagnosis, doctor
    from onnx_bridge.difference import diff
    from onnx_bridge.explanation import explain
    from onnx_bridge.exporting.export import Exported
    from onnx_bridge.exporting.front import export
    from onnx_bridge.gpu_preview import AsGpu, as_gpu
    from onnx_bridge.inspection import inspect
    from onnx_bridge.int8_forecast import Forecast, forecast
    from onnx_bridge.parity.bisect import bisect
    from onnx_bridge.parity.reduce import reduce
    from onnx_bridge.parity.report import Report
    from onnx_bridge.quantizing.quantize import quantize
    from onnx_bridge.quantizing.quantized import Quantized
    from onnx_bridge.torch import lower
    from onnx_bridge.tuning.keeping import keep
    from onnx_bridge.tuning.tune import tune

__all__ = [
    "AsGpu",
    "Buckets",
    "Bundle",
    "Diagnosis",
    "Exported",
    "Forecast",
    "Quantized",
    "Report",
    "Settings",
    "__version__",
    "as_gpu",
    "bench",
    "bisect",
    "check",
    "clean",
    "convert",
    "convert_all",
    "convert_buckets",
    "diff",
    "doctor",
    "explain",
    "export",
    "forecast",
    "inspect",
    "keep",
    "load",
    "lower",
    "pack",
    "quantize",
    "reduce",
    "tune",
    "unpack",
    "verify",
]

_HOMES = {
    "AsGpu": "onnx_bridge.gpu_preview",
    "Buckets": "onnx_bridge.conversion.buckets",
    "Bundle": "onnx_bridge.conversion.bundle",
    "Diagnosis": "onnx_bridge.diagnosis",
    "Exported": "onnx_bridge.exporting.export",
    "Forecast": "onnx_bridge.int8_forecast",
    "Quantized": "onnx_bridge.quantizing.quantized",
    "Report": "onnx_bridge.parity.report",
    "Settings": "onnx_bridge.conversion.jobs",
    "as_gpu": "onnx_bridge.gpu_preview",
    "bench": "onnx_bridge.benchmarking.benchmark",
    "bisect": "onnx_bridge.parity.bisect",
    "check": "onnx_bridge.checking",
    "clean": "onnx_bridge.cleaning",
    "convert": "onnx_bridge.conversion.convert",
    "convert_all": "onnx_bridge.conversion.batch",
    "convert_buckets": "onnx_bridge.conversion.bucket_conversion",
    "diff": "onnx_bridge.difference",
    "doctor": "onnx_bridge.diagnosis",
    "explain": "onnx_bridge.explanation",
    "export": "onnx_bridge.exporting.front",
    "forecast": "onnx_bridge.int8_forecast",
    "inspect": "onnx_bridge.inspection",
    "keep": "onnx_bridge.tuning.keeping",
    "load": "onnx_bridge.conversion.bundle",
    "lower": "onnx_bridge.torch",
    "quantize": "onnx_bridge.quantizing.quantize",
    "pack": "onnx_bridge.conversion.packing",
    "reduce": "onnx_bridge.parity.reduce",
    "tune": "onnx_bridge.tuning.tune",
    "unpack": "onnx_bridge.conversion.packing",
    "verify": "onnx_bridge.conversion.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_onnx_ir()
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
