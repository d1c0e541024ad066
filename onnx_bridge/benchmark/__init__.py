"""Measuring how fast a model runs, on which engine, and whether it became slower."""
