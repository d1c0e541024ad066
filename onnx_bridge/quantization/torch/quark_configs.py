"""The configurations of Quark's PyTorch quantizer, by scheme: how tensors are stored, and how scales are found."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.quantization import quark
from onnx_bridge.requests.quantization import Mode
from onnx_bridge.requests.schemes import BLOCK, Method, Recipe, Scheme

_CONFIG = "quark.torch.quantization.config"
_OBSERVER = "quark.torch.quantization.observer.observer"
_OBSERVERS = {
    "minmax": "PerTensorMinMaxObserver",
    "mse": "PerTensorHistogramObserverPro",
    "percentile": "PerTensorPercentileObserver",
}
"""Quark's classes for scales that are any numbers. Its own search for the least squared error tries 3 of 2048 ranges;
that of torch tries all."""
WEIGHTS_ONLY = ("bfp16", "mxfp4", "int4-weights")
"""Schemes whose activations stay in float: Quark has no ONNX form for them, or they are for weights only."""


def config(recipe: Recipe, mode: Mode, *, exclude: list[str], algorithms: list[Any]) -> Any:
    """Return a configuration of Quark for a recipe and mode; ``exclude`` names layers, for the eager mode.

    The mode ``fx`` also quantizes operators between layers, such as additions. Biases stay in float unless the recipe
    has them in 8 bits: in 32 they would need the scale of the product, which neither Quark nor MIGraphX enforces.
    """
    configs, types = quark.load(f"{_CONFIG}.config"), quark.load(f"{_CONFIG}.type")
    stored = "int8" if recipe.scheme in ("uint8", "int16") else recipe.scheme  # of weights
    method = recipe.method if stored == "int8-pow2" else "minmax"
    weight = _spec(stored, configs, method, per_channel=recipe.per_channel)
    activations = None if recipe.scheme in WEIGHTS_ONLY else _spec(recipe.scheme, configs, recipe.method)
    layer = configs.QLayerConfig(
        input_tensors=activations,
        output_tensors=activations if mode == "fx" else None,
        weight=weight,
        bias=_spec(stored, configs, method) if recipe.bias else None,
    )
    quant_mode = types.QuantizationMode.fx_graph_mode if mode == "fx" else types.QuantizationMode.eager_mode
    return configs.QConfig(global_quant_config=layer, quant_mode=quant_mode, exclude=exclude, algo_config=algorithms)


def algorithm_config(name: str, module: nn.Module) -> tuple[str, Any]:
    """Return a decoder's name in a module, and Quark's configuration of an algorithm for its architecture.

    Raises:
        InputError: Quark does not know the layers of the module.
    """
    library = quark.load(f"{_CONFIG}.algo_configs")
    kinds = {path: getattr(getattr(part, "config", None), "model_type", None) for path, part in module.named_modules()}
    for path, kind in kinds.items():
        known = kind and library.get_algo_config(name, kind)
        if known and _has(module.get_submodule(path), known.model_decoder_layers):
            return path, copy.deepcopy(known)
    found = ", ".join({str(kind) for kind in kinds.values() if kind}) or type(module).__name__
    architectures = ", ".join(sorted(library.ALGORITHM_CONFIG_MAPS[name]))
    what = f"Quark knows the layers of decoders of transformers alone, and not those of {found}"
    raise InputError(what, where=f"algorithm {name}", hint=f"it knows {architectures}")


def _has(module: nn.Module, path: str) -> bool:
    try:
        return bool(module.get_submodule(path))
    except AttributeError:
        return False


def storage_notes(scheme: Scheme) -> tuple[str, ...]:
    """Return what the user should know about the scheme's form in ONNX, in sentences."""
    if scheme.name == "bf16":
        return ("weights are stored as float, rounded to bfloat16",)
    if scheme.name in WEIGHTS_ONLY and scheme.name != "int4-weights":
        return (f"weights are stored as float, rounded to {scheme.name}; activations stay in float",)
    return ()


def _spec(name: str, configs: Any, method: Method | None, *, per_channel: bool = False) -> Any:
    """Return how a tensor is stored in the form of a scheme."""
    match name:
        case "bf16":
            return configs.Bfloat16Spec().to_quantization_spec()
        case "bfp16":
            return configs.BFP16Spec(ch_axis=-1).to_quantization_spec()
        case "mxfp4":
            return configs.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()
        case "int4-weights":
            return configs.Int4PerGroupSpec(
                ch_axis=-1,
                group_size=BLOCK,
                is_dynamic=False,
                symmetric=True,
                scale_type="float",
                round_method="half_even",
            ).to_quantization_spec()
        case "fp8":
            return configs.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False).to_quantization_spec()
        case _:
            return _integers(name.removesuffix("-pow2"), configs, method, per_channel, powers=name.endswith("-pow2"))


def _integers(name: str, configs: Any, method: Method | None, per_channel: bool, *, powers: bool) -> Any:
    types, observers = quark.load(f"{_CONFIG}.type"), quark.load(_OBSERVER)
    measure = f"PerTensorPowOf2Min{'MSE' if method == 'mse' else 'Max'}Observer" if powers else _OBSERVERS[str(method)]
    measure = measure.replace("Tensor", "Channel") if per_channel else measure
    if not hasattr(observers, measure):
        raise InputError(f"this version of Quark has no {measure}", hint="pip install --upgrade --no-deps amd-quark")
    return configs.QTensorConfig(
        dtype=getattr(types.Dtype, name),
        qscheme=types.QSchemeType.per_channel if per_channel else types.QSchemeType.per_tensor,
        observer_cls=getattr(observers, measure),
        symmetric=name != "uint8",
        scale_type=types.ScaleType.pof2 if powers else types.ScaleType.float,
        round_method=types.RoundType.half_even,
        is_dynamic=False,
        ch_axis=0 if per_channel else None,
    )
