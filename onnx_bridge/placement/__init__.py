"""The search for the nodes that must stay in a higher precision: of `quantize` with a minimum and `mixed_precision`."""
