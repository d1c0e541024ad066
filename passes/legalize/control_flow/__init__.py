"""Rules for If, Loop, Scan, functions and sequences."""
