"""The only package that knows ONNX Runtime's MIGraphX provider: its environments, its process, its sessions."""
