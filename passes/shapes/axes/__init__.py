"""The axes of operators: which sizes are the same, or follow from one another."""
