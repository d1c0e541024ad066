"""Passes that remove what does not change the result."""
