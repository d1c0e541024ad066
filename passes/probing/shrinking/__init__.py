"""Rules to shrink the sizes of nodes without changing what selects their behaviour."""
