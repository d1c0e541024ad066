"""Constant parts of a model, computed by ONNX Runtime."""
