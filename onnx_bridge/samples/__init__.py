"""Inputs of models: their roles, generated samples, and samples from files."""
