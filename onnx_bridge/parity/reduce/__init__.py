"""Reduction: the smallest model that still shows a symptom on MIGraphX."""
