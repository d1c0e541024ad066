"""What ONNX's shape inference gets wrong, corrected."""
