"""Benchmarks, and searches for the fastest conversion and for mixed precision."""
