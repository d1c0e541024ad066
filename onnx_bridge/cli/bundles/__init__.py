"""Bundles after they are converted."""
