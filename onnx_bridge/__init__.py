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
    from onnx_bridge.batch.convert_all import convert_all as convert_all
    from onnx_bridge.benchmark.bench import bench as bench
    from onnx_bridge.bundle.bundle import load as load
    from onnx_bridge.bundle.difference import diff as diff
    from onnx_bridge.bundle.files.pack import pack as pack
    from onnx_bridge.bundle.files.pack import unpack as unpack
    from onnx_bridge.bundle.files.verify import verify as verify
    from onnx_bridge.bundle.generate import generate as generate
    from onnx_bridge.bundle.gpu_preview import as_gpu as as_gpu
    from onnx_bridge.bundle.inspect import inspect as inspect
    from onnx_bridge.conversion.cleaning import clean as clean
    from onnx_bridge.conversion.convert import convert as convert
    from onnx_bridge.conversion.diagnosis.doctor import doctor as doctor
    from onnx_bridge.conversion.diagnosis.explain import explain as explain
    from onnx_bridge.core.errors import BridgeError as BridgeError
    from onnx_bridge.core.errors import InputError as InputError
    from onnx_bridge.core.errors import MigraphxError as MigraphxError
    from onnx_bridge.core.errors import NotEmulated as NotEmulated
    from onnx_bridge.core.errors import OutOfMemory as OutOfMemory
    from onnx_bridge.core.errors import ParityError as ParityError
    from onnx_bridge.core.errors import PassError as PassError
    from onnx_bridge.core.errors import ProgramLost as ProgramLost
    from onnx_bridge.core.errors import RuntimeFailure as RuntimeFailure
    from onnx_bridge.core.errors import RuntimeNotFound as RuntimeNotFound
    from onnx_bridge.core.errors import Unreachable as Unreachable
    from onnx_bridge.core.errors import WorkerCrashed as WorkerCrashed
    from onnx_bridge.core.errors import WorkerTimeout as WorkerTimeout
    from onnx_bridge.model.int8_forecast import forecast as forecast
    from onnx_bridge.parity.bisect.bisect import bisect as bisect
    from onnx_bridge.parity.checking.check import check as check
    from onnx_bridge.parity.reduce.reduce import reduce as reduce
    from onnx_bridge.quantization.quantize import quantize as quantize
    from onnx_bridge.search.mixed_precision import mixed_precision as mixed_precision
    from onnx_bridge.search.tune import tune as tune
    from onnx_bridge.torch.export.export import export as export
    from onnx_bridge.torch.lowering.lower import lower as lower
    from onnx_bridge.views.graph_viewers import model_explorer as model_explorer

_MODULES = {
    "as_gpu": "onnx_bridge.bundle.gpu_preview",
    "bench": "onnx_bridge.benchmark.bench",
    "bisect": "onnx_bridge.parity.bisect.bisect",
    "check": "onnx_bridge.parity.checking.check",
    "clean": "onnx_bridge.conversion.cleaning",
    "convert": "onnx_bridge.conversion.convert",
    "convert_all": "onnx_bridge.batch.convert_all",
    "diff": "onnx_bridge.bundle.difference",
    "doctor": "onnx_bridge.conversion.diagnosis.doctor",
    "explain": "onnx_bridge.conversion.diagnosis.explain",
    "export": "onnx_bridge.torch.export.export",
    "forecast": "onnx_bridge.model.int8_forecast",
    "generate": "onnx_bridge.bundle.generate",
    "inspect": "onnx_bridge.bundle.inspect",
    "load": "onnx_bridge.bundle.bundle",
    "lower": "onnx_bridge.torch.lowering.lower",
    "mixed_precision": "onnx_bridge.search.mixed_precision",
    "model_explorer": "onnx_bridge.views.graph_viewers",
    "pack": "onnx_bridge.bundle.files.pack",
    "quantize": "onnx_bridge.quantization.quantize",
    "reduce": "onnx_bridge.parity.reduce.reduce",
    "tune": "onnx_bridge.search.tune",
    "unpack": "onnx_bridge.bundle.files.pack",
    "verify": "onnx_bridge.bundle.files.verify",
}
"""The public functions, one a verb, with the module of each. Types of arguments and results live in these modules."""
_ERRORS = (
    *("BridgeError", "InputError", "MigraphxError", "NotEmulated", "OutOfMemory", "ParityError", "PassError"),
    *("ProgramLost", "RuntimeFailure", "RuntimeNotFound", "Unreachable", "WorkerCrashed", "WorkerTimeout"),
)
"""The errors, whose module is `onnx_bridge.core.errors`."""

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    modules = {**_MODULES, **dict.fromkeys(_ERRORS, "onnx_bridge.core.errors")}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(modules[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ERRORS])
