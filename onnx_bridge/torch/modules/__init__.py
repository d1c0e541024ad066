"""PyTorch modules: their calls, structure, tensors and identity."""
