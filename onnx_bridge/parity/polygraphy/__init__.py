"""Polygraphy's runner and plugin."""
