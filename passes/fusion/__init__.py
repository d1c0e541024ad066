"""Passes that merge nodes."""
