"""Models in forms that ONNX Runtime's CPU provider has kernels for."""
