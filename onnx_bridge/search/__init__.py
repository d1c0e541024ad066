"""Searches for the fastest conversion and for the nodes that must stay in float32."""
