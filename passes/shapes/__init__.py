"""Types, sizes and values of shapes: inference, its corrections, and declarations."""
