"""Open sizes: how they are found, bound, padded and frozen."""
