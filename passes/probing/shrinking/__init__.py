"""How the sizes of nodes may shrink without changing what selects their behaviour."""
