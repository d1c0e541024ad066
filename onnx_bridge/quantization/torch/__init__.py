"""PyTorch modules, quantized by AMD Quark."""
