"""PyTorch modules on MIGraphX: exported to ONNX, checked against the module, converted, and called like the module.

The API functions are `onnx_bridge.export` and `onnx_bridge.lower`; ``onnx_bridge`` is also a backend of
`torch.compile`. Their modules can be imported without PyTorch.
"""

from __future__ import annotations

from onnx_bridge.core.errors import InputError


def require_torch() -> None:
    """Check that PyTorch can be imported; raises InputError otherwise."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        what = "PyTorch is not installed" if error.name == "torch" else f"PyTorch cannot be imported: {error}"
        raise InputError(what, hint="pip install 'onnx-bridge[torch]'") from error
