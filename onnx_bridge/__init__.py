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

from onnx_bridge.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from onnx_bridge.batch.convert_all import convert_all
    from onnx_bridge.batch.request import JobRequest
    from onnx_bridge.benchmark.bench import bench
    from onnx_bridge.benchmark.mixed_precision import mixed_precision
    from onnx_bridge.benchmark.tune import tune
    from onnx_bridge.bundle.buckets import Buckets
    from onnx_bridge.bundle.bundle import Bundle
    from onnx_bridge.bundle.gpu_preview import AsGpu, as_gpu
    from onnx_bridge.bundle.inspect import inspect
    from onnx_bridge.bundle.load import load
    from onnx_bridge.bundle.pack import pack, unpack
    from onnx_bridge.bundle.verify import verify
    from onnx_bridge.conversion.buckets import convert_buckets
    from onnx_bridge.conversion.clean import clean
    from onnx_bridge.conversion.convert import convert
    from onnx_bridge.conversion.doctor import Diagnosis, doctor
    from onnx_bridge.conversion.explain import explain
    from onnx_bridge.model.difference import diff
    from onnx_bridge.model.int8_forecast import Forecast, forecast
    from onnx_bridge.parity.bisect.bisect import bisect
    from onnx_bridge.parity.check import check
    from onnx_bridge.parity.reduce.reduce import reduce
    from onnx_bridge.parity.report import CheckReport
    from onnx_bridge.quantization.quantize import quantize
    from onnx_bridge.quantization.quantized import Quantized
    from onnx_bridge.torch.export.export import export
    from onnx_bridge.torch.export.exported import Exported
    from onnx_bridge.torch.lowering.lower import lower

__all__ = [
    "AsGpu",
    "Buckets",
    "Bundle",
    "CheckReport",
    "Diagnosis",
    "Exported",
    "Forecast",
    "JobRequest",
    "Quantized",
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
    "load",
    "lower",
    "mixed_precision",
    "pack",
    "quantize",
    "reduce",
    "tune",
    "unpack",
    "verify",
]

_HOMES = {
    "AsGpu": "onnx_bridge.bundle.gpu_preview",
    "Buckets": "onnx_bridge.bundle.buckets",
    "Bundle": "onnx_bridge.bundle.bundle",
    "Diagnosis": "onnx_bridge.conversion.doctor",
    "Exported": "onnx_bridge.torch.export.exported",
    "Forecast": "onnx_bridge.model.int8_forecast",
    "JobRequest": "onnx_bridge.batch.request",
    "Quantized": "onnx_bridge.quantization.quantized",
    "CheckReport": "onnx_bridge.parity.report",
    "as_gpu": "onnx_bridge.bundle.gpu_preview",
    "bench": "onnx_bridge.benchmark.bench",
    "bisect": "onnx_bridge.parity.bisect.bisect",
    "check": "onnx_bridge.parity.check",
    "clean": "onnx_bridge.conversion.clean",
    "convert": "onnx_bridge.conversion.convert",
    "convert_all": "onnx_bridge.batch.convert_all",
    "convert_buckets": "onnx_bridge.conversion.buckets",
    "diff": "onnx_bridge.model.difference",
    "doctor": "onnx_bridge.conversion.doctor",
    "explain": "onnx_bridge.conversion.explain",
    "export": "onnx_bridge.torch.export.export",
    "forecast": "onnx_bridge.model.int8_forecast",
    "inspect": "onnx_bridge.bundle.inspect",
    "load": "onnx_bridge.bundle.load",
    "lower": "onnx_bridge.torch.lowering.lower",
    "mixed_precision": "onnx_bridge.benchmark.mixed_precision",
    "quantize": "onnx_bridge.quantization.quantize",
    "pack": "onnx_bridge.bundle.pack",
    "reduce": "onnx_bridge.parity.reduce.reduce",
    "tune": "onnx_bridge.benchmark.tune",
    "unpack": "onnx_bridge.bundle.pack",
    "verify": "onnx_bridge.bundle.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
