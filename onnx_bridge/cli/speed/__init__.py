"""Faster bundles: figures, and searches for them."""
