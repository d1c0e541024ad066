"""An ONNX model in memory: read without touching its weights, and written the same way."""
