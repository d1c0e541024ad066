"""What ONNX Bridge stands on: MIGraphX, and the cache."""
