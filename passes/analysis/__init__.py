"""Facts about a graph: constants, shapes, costs, quantization."""
