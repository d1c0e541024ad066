"""Passes that bring quantized models into the form that int8 kernels need."""
