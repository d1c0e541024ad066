"""Verbs for MIGraphX and the cache."""
