"""Models for ONNX Runtime's MIGraphX provider: placed node by node, and written as a folder that a session opens."""
