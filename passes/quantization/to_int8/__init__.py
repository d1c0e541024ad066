"""Passes that give QuantizeLinear and DequantizeLinear the form that int8 kernels take."""
