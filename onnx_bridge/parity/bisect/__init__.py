"""`bisect`: which step, pass and rewrite makes the numbers differ."""
