"""Passes and rules: their base classes, the driver, edits, pipelines and specifications."""
