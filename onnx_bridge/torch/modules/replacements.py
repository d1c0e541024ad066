"""Modules that cannot be exported, replaced by others that compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from onnx_bridge.torch.modules.dynamic_linear import DynamicLinear, is_dynamic_linear
from onnx_bridge.torch.modules.projected_lstm import ProjectedLstm, is_projected

_REPLACEMENTS: tuple[tuple[Callable[[nn.Module], bool], Callable[..., nn.Module]], ...] = (
    (is_dynamic_linear, DynamicLinear),
    (is_projected, ProjectedLstm),
)


def traceable(module: nn.Module) -> nn.Module:
    """Return a module with replacements for what cannot be exported; the module itself if there is nothing to replace.

    Args:
        module: it is not changed.
    """
    replacement = _replacement(module)
    if replacement is not None:
        return replacement
    if not any(applies(submodule) for submodule in module.modules() for applies, _ in _REPLACEMENTS):
        return module
    copied = copy.copy(module)
    copied.__dict__["_modules"] = {
        name: child if child is None else traceable(child) for name, child in module._modules.items()
    }
    return copied


def _replacement(module: nn.Module) -> nn.Module | None:
    return next((build(module) for applies, build in _REPLACEMENTS if applies(module)), None)
