"""Passes that change what a model takes, or what it is written in, as the user asks."""
