"""Rules for elementwise arithmetic, reductions, matrix products and transforms."""
