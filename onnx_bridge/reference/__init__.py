"""ONNX Runtime as the reference, and the comparison of outputs with it."""
