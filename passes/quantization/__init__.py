"""Passes on quantized models, in the two steps that the pipelines take."""
