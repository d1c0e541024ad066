"""Graph rewrites, one pass a file, and their registry by name.

Importing this package is cheap: a pass is imported when it is needed, so that names can be listed and completed without
importing onnx.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from passes.core.errors import InputError, nearest
from passes.pipelines import PIPELINES, QUANTIZED_ONLY

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from onnx_ir.passes import PassBase

    from passes.rewriting.base import Pass

__all__ = ["PIPELINES", "QUANTIZED_ONLY", "describe", "get", "load_file", "names", "register"]

_P = TypeVar("_P", bound="Pass | type[Pass] | type[PassBase]")

_BUILT_IN = {
    "cancel-qdq": "passes.quantization.to_int8.cancel_qdq:cancel_qdq",
    "center-matmul-integer": "passes.quantization.to_int8.center_matmul_integer:center_matmul_integer",
    "check-quantization": "passes.quantization.to_qdq.check_quantization:CheckQuantization",
    "convert-opset": "passes.specialize.convert_opset:ConvertOpset",
    "convert-precision": "passes.specialize.convert_precision:ConvertPrecision",
    "decompose-quark": "passes.quantization.to_qdq.decompose_quark:decompose_quark",
    "dissolve-sequences": "passes.legalize.control_flow.dissolve_sequences:DissolveSequences",
    "eliminate-common-subexpressions": "passes.cleanup.eliminate_common_subexpressions:EliminateCommonSubexpressions",
    "explicit-zero-point": "passes.quantization.to_int8.explicit_zero_point:explicit_zero_point",
    "fold-batch-norm": "passes.fusion.fold_batch_norm:fold_batch_norm",
    "fold-constants": "passes.cleanup.fold_constants:FoldConstants",
    "fold-pad": "passes.fusion.fold_pad:fold_pad",
    "fold-qdq": "passes.quantization.to_qdq.fold_qdq:FoldQdq",
    "freeze-inputs": "passes.specialize.freeze_inputs:FreezeInputs",
    "freeze-random": "passes.specialize.freeze_random:FreezeRandom",
    "freeze-shapes": "passes.specialize.freeze_shapes:FreezeShapes",
    "fuse-gelu": "passes.fusion.fuse_gelu:fuse_gelu",
    "fuse-gemm": "passes.fusion.fuse_gemm:fuse_gemm",
    "fuse-layer-norm": "passes.fusion.fuse_layer_norm:fuse_layer_norm",
    "infer-shapes": "passes.cleanup.infer_shapes:InferShapes",
    "inline-constant-if": "passes.cleanup.inline_constant_if:InlineConstantIf",
    "inline-functions": "passes.cleanup.inline_functions:InlineFunctions",
    "int4-to-int8": "passes.quantization.to_int8.int4_to_int8:int4_to_int8",
    "keep-inner-scales": "passes.quantization.to_int8.keep_inner_scales:keep_inner_scales",
    "legalize": "passes.legalize.legalize:Legalize",
    "lift-constant-nodes": "passes.cleanup.lift_constant_nodes:LiftConstantNodes",
    "lift-dequantize": "passes.quantization.to_int8.lift_dequantize:lift_dequantize",
    "merge-reshapes": "passes.fusion.merge_reshapes:merge_reshapes",
    "merge-slices": "passes.fusion.merge_slices:merge_slices",
    "merge-transposes": "passes.fusion.merge_transposes:merge_transposes",
    "qoperator-to-qdq": "passes.quantization.to_qdq.qoperator_to_qdq:qoperator_to_qdq",
    "remove-dead": "passes.cleanup.remove_dead:RemoveDead",
    "remove-identity": "passes.cleanup.remove_identity:remove_identity",
    "requantize-weights": "passes.quantization.to_int8.requantize_weights:requantize_weights",
    "saturate-before-quantize": "passes.quantization.to_int8.saturate_before_quantize:saturate_before_quantize",
    "set-ir-version": "passes.specialize.set_ir_version:SetIrVersion",
    "share-constants": "passes.cleanup.share_constants:ShareConstants",
    "split-gemm": "passes.quantization.split_gemm:split_gemm",
    "surgeon": "passes.surgeon.surgeon:Surgeon",
    "uint8-to-int8": "passes.quantization.to_int8.uint8_to_int8:Uint8ToInt8",
    "unblock-scales": "passes.quantization.to_int8.unblock_scales:unblock_scales",
    "unshadow-names": "passes.cleanup.unshadow_names:UnshadowNames",
    "widen-products": "passes.quantization.to_int8.widen_products:widen_products",
    "widen-scales": "passes.quantization.to_int8.widen_scales:widen_scales",
}

_registered: dict[str, type[Pass]] = {}


def names() -> list[str]:
    """Return the names of all passes, sorted: built in, registered, and offered by installed packages."""
    return sorted({*_BUILT_IN, *_registered, *_offered()})


def get(name: str) -> type[Pass]:
    """Return the class of a pass; raises InputError if no pass has this name."""
    if name in _registered:
        return _registered[name]
    if name not in _BUILT_IN and name in _offered():
        return _load_offered(name)
    module, _, attribute = _location(name).partition(":")
    step: type[Pass] | Pass = getattr(importlib.import_module(module), attribute)
    return step if isinstance(step, type) else type(step)


def describe(name: str) -> str:
    """Return the first line of a pass's docstring, read without importing a built-in pass.

    Raises InputError if no pass has this name.
    """
    if name not in _BUILT_IN and name in (*_registered, *_offered()):
        return (get(name).__doc__ or "").strip().partition("\n")[0]
    module, _, attribute = _location(name).partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    definitions = (each for each in tree.body if isinstance(each, (ast.ClassDef, ast.FunctionDef)))
    definition = next(each for each in definitions if each.name == attribute)
    return (ast.get_docstring(definition) or "").partition("\n")[0]


def register(step: _P) -> _P:
    """Register a pass under its name; use it as a decorator.

    Args:
        step: a class of passes; what `passes.rewriting.rewrite.rewrite` makes of a function; or a class of
            ``onnx_ir.passes.PassBase`` that is made without arguments. The name of the last is its attribute ``name``,
            or else that of the class: ``RemoveUnusedPass`` becomes ``remove-unused``.

    Raises:
        InputError: another pass, or a pipeline, has this name; or it is not a pass.
    """
    cls = _as_pass(step, where=getattr(step, "__name__", str(step)))
    name = cls.name
    if name in _BUILT_IN or name in PIPELINES or _registered.get(name, cls) is not cls:
        raise InputError(f"there is already a pass or a pipeline {name}", hint="give your pass another name")
    _registered[name] = cls
    return step


def load_file(path: str | os.PathLike[str]) -> list[str]:
    """Run a Python file that registers passes (`register`).

    Returns:
        The names of the new passes.

    Raises:
        InputError: there is no such file, it raises an error, or it registers nothing.
    """
    path = Path(path)
    before = set(_registered)
    scripts = importlib.import_module("passes.core.scripts")  # deferred: verdicts do not depend on it
    try:
        scripts.load(path, f"passes_of_{path.stem}")
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the file fails: {type(error).__name__}: {error}", where=str(path)) from error
    new = sorted(set(_registered) - before)
    if not new:
        raise InputError("the file registers no pass", where=str(path), hint="decorate the pass with @passes.register")
    return new


@functools.cache
def _offered() -> dict[str, EntryPoint]:
    """Return the passes of installed packages: entry points of the group ``onnx_bridge.passes``, name = module:pass."""
    metadata = importlib.import_module("importlib.metadata")  # deferred: 40 ms, which completion need not wait for
    return {each.name: each for each in metadata.entry_points(group="onnx_bridge.passes")}


def _load_offered(name: str) -> type[Pass]:
    entry = _offered()[name]
    where = f"entry point {entry.value} of {entry.dist.name if entry.dist else 'a package'}"
    try:
        found = entry.load()
    except Exception as error:
        raise InputError(f"it fails: {type(error).__name__}: {error}", where=where) from error
    loaded = _as_pass(found, where=where, name=name)
    if loaded.name != name:
        raise InputError(f"it is a pass of another name, {loaded.name}", where=where)
    return loaded


def _as_pass(found: object, *, where: str, name: str | None = None) -> type[Pass]:
    """Return the class of a pass of this package or of `onnx_ir`."""
    module = importlib.import_module("passes.rewriting.onnx_ir_passes")  # deferred, since it waits for onnx
    loaded: type[Pass] | None = module.as_pass(found, name)
    if loaded is None:
        raise InputError("it is not a pass", where=where, hint="a pass is a Pass, or a PassBase of onnx_ir")
    return loaded


def _location(name: str) -> str:
    """Return where a built-in pass is, as ``module:class`` or ``module:function``."""
    if name not in _BUILT_IN:
        hint = nearest(name, [*names(), *PIPELINES]) or f"there are {', '.join(names())}"
        raise InputError(f"there is no pass or pipeline {name}", hint=hint)
    return _BUILT_IN[name]
