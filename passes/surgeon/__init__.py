"""onnx-graphsurgeon scripts as passes."""
