"""Pieces of a model, cut out and run by themselves."""
