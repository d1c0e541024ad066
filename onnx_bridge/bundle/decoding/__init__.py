"""Bundles of language models that generate token by token: static caches, generation."""
