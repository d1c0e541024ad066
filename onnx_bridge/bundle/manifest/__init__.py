"""The manifest of a bundle, and what it records."""
