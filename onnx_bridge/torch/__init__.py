"""PyTorch modules on MIGraphX: exported to ONNX, checked against the module, converted, and called like the module.

The API functions are `onnx_bridge.export` and `onnx_bridge.lower`; ``onnx_bridge`` is also a backend of
`torch.compile`. Their modules can be imported without PyTorch.
"""
