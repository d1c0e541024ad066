"""Comparison by layer: every value of the cleaned model."""
