"""Rules for operators that create, move or select elements."""
