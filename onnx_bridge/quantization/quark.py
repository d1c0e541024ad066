"""AMD Quark, imported on first use, with its output suppressed, and its quantizer for ONNX models.

The quantizer's rewrites for AMD's NPUs (Sigmoid to HardSigmoid, scales aligned for a DPU) change what the model
computes, and are turned off.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import describe, suppressed_output
from onnx_bridge.quantization.calibration_data import CalibrationReader
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.reference.quark.build import INSTALL, NEEDS, compilation
from onnx_bridge.requests.schemes import BLOCK, Recipe

_SPECS = {
    "int8": ("Int8Spec", "Int8Spec"),
    "int8-pow2": ("XInt8Spec", "XInt8Spec"),
    "uint8": ("UInt8Spec", "Int8Spec"),
    "int16": ("Int16Spec", "Int8Spec"),
    "bf16": ("BFloat16Spec", "BFloat16Spec"),
    "bfp16": ("BFP16Spec", "BFP16Spec"),
    "mxfp4": ("MXFP4E2M1Spec", "MXFP4E2M1Spec"),
}
"""Quark's classes for activations and weights, by scheme; 4-bit weights have a quantizer of their own."""
_METHODS = {
    "minmax": "MinMax",
    "mse": "MinMSE",
    "percentile": "Percentile",
    "layer-percentile": "LayerwisePercentile",
    "entropy": "Entropy",
    "distribution": "Distribution",
}
"""The members of Quark's CalibMethod."""
_ALGORITHMS = {
    "cle": ("CLEConfig", {"steps": "cle_steps"}),
    "smoothquant": ("SmoothQuantConfig", {"alpha": "alpha"}),
    "bias-correction": ("BiasCorrectionConfig", {}),
    "adaround": ("AdaRoundConfig", {"iterations": "num_iterations", "rate": "learning_rate"}),
    "adaquant": ("AdaQuantConfig", {"iterations": "num_iterations", "rate": "learning_rate"}),
}
"""Quark's classes of algorithms, and what they call our options."""
_PLAIN = {"EnableNPUCnn": False, "OptimizeModel": False, "PrintSummary": False, "ForceQuantizeNoInputCheck": True}


class GraphModeError(InputError):
    """Quark's graph mode does not support a module, or what is asked of it."""


def load(module: str) -> Any:
    """Import a module of Quark, such as ``quark.onnx``; raises InputError if that fails, or its build is locked.

    The first import takes seconds: Quark reads the sources of all models of transformers, if that is installed.
    """
    try:
        with suppressed_output(), _without_collector(), compilation():
            return importlib.import_module(module)
    except InputError:
        raise
    except ImportError as error:
        missing = error.name is not None and module.startswith(error.name)
        what = "AMD Quark is not installed" if missing else f"AMD Quark cannot be imported: {describe(error)}"
        raise InputError(what, hint=INSTALL) from error
    except Exception as error:  # it compiles operators when it is first imported
        raise InputError(f"AMD Quark cannot be imported: {describe(error)}", hint=NEEDS) from error


def require_torchao() -> None:
    """Check that torchao is installed, without which Quark's graph mode fails late; raises InputError otherwise."""
    try:
        with suppressed_output():
            importlib.import_module("torchao")
    except ImportError as error:
        raise InputError("Quark's graph mode needs torchao, which is not installed", hint=INSTALL) from error


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Suppress Quark's log and warnings, but not those of others."""
    logger = load("quark.common.utils.log").ScreenLogger
    level = logger._shared_level
    logger.set_shared_level(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"quark\.")
            yield
    finally:
        logger.set_shared_level(level)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector, which takes most of the time of Quark's import."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def quantize(source: Source, recipe: Recipe, reader: CalibrationReader) -> tuple[str, ...]:
    """Quantize as `onnx_bridge.quantization.onnxruntime_quantizer.quantize`; raises InputError without Quark, too."""
    library = load("quark.onnx")
    try:
        # It writes times into the folder that it runs in.
        with suppressed_output(), contextlib.chdir(source.path.parent), _counted(reader), _raised_errors():
            if recipe.scheme == "int4-weights":
                _four_bits(source)
            else:
                quantizer = library.ModelQuantizer(_config(recipe, source))
                quantizer.quantize_model(str(source.path), str(source.target), reader)
    except Exception as error:  # of any type
        raise InputError(f"Quark cannot do it: {describe(error)}", where=recipe.scheme) from error
    return ()


@contextlib.contextmanager
def _counted(reader: CalibrationReader) -> Iterator[None]:
    """Let ``reader`` count the samples that Quark takes from its copy of them, which it makes first."""
    module = load("quark.onnx.quantization.quantize")
    kind = module.CachedDataReader

    class Counted(kind):  # type: ignore[misc, valid-type]
        def get_next(self) -> Any:
            sample = super().get_next()
            if sample is not None:
                reader.count()
            return sample

        def reset_iter(self) -> None:
            reader.restart()
            super().reset_iter()

    module.CachedDataReader = Counted
    try:
        yield
    finally:
        module.CachedDataReader = kind


@contextlib.contextmanager
def _raised_errors() -> Iterator[None]:
    """Raise the first error that Quark logs: it catches it, and goes on by another method, or leaves a layer out."""
    kind = load("quark.common.utils.log").ScreenLogger
    first: list[BaseException] = []
    own = kind.error

    def error(logger: Any, text: str, *args: Any, **kwargs: Any) -> None:
        first.append(sys.exc_info()[1] or RuntimeError(text))

    kind.error = error
    try:
        yield
    except Exception:
        if not first:
            raise
    finally:
        kind.error = own
    if first:
        raise first[0]


def _four_bits(source: Source) -> None:
    """Store weights in 4 bits, by the part of ModelQuantizer that does, to which it does not say what is excluded."""
    library = load("quark.onnx.quantizers.matmul_nbits_quantizer")
    model = onnx.load(source.path)
    quantizer = library.MatMulNBitsQuantizer(model, BLOCK, True, 4, nodes_to_exclude=list(source.excluded))
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(source.target), source.large)


def _config(recipe: Recipe, source: Source) -> Any:
    library, specs = load("quark.onnx"), load("quark.onnx.quantization.config.spec")
    activations, weights = (getattr(specs, name) for name in _SPECS[recipe.scheme])
    measured: dict[str, Any] = {}
    if recipe.method is not None:
        measured["calibration_method"] = getattr(specs.CalibMethod, _METHODS[recipe.method])
    own = measured if recipe.scheme == "int8-pow2" else {"calibration_method": specs.CalibMethod.MinMax}
    granularity = specs.QuantGranularity.Channel if recipe.per_channel else specs.QuantGranularity.Tensor
    weight = weights(**own, quant_granularity=granularity)
    return library.QConfig(
        library.QLayerConfig(input_tensors=activations(**measured), weight=weight),
        exclude=[*source.excluded, *(_factors(source) if "smoothquant" in dict(recipe.algorithms) else ())],
        algo_config=[_algorithm(name, options) for name, options in recipe.algorithms],
        use_external_data_format=source.large,
        extra_options=_PLAIN,
    )


def _factors(source: Source) -> list[str]:
    """Return the names of the nodes by which SmoothQuant multiplies operands, before they are quantized."""
    graph = onnx.load(source.path, load_external_data=False).graph
    return [f"{node.input[0]}_{node.name}_smooth_mul" for node in graph.node if node.op_type == "MatMul"]


def _algorithm(name: str, options: Mapping[str, float]) -> Any:
    kind, names = _ALGORITHMS[name]
    given = {names[option]: value for option, value in options.items()}
    return getattr(load("quark.onnx.quantization.config.algorithm"), kind)(**given)
