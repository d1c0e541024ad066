"""Passes that write every form of quantization with QuantizeLinear and DequantizeLinear."""
