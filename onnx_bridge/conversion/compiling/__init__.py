"""Partitions, and their compilation by MIGraphX."""
