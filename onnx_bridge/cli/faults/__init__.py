"""The cause of a difference, and the smallest model that shows it."""
