"""Rules for the operators of ai.onnx.ml."""
