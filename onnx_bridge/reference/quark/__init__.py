"""Quark's operators on ONNX Runtime."""
