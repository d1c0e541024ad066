"""Corrections of ONNX's shape inference."""
