"""Builders of ONNX expressions that several passes and legalization rules share."""
