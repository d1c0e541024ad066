"""Proof of a bundle by comparison with the reference, at real size or of a smaller witness."""
