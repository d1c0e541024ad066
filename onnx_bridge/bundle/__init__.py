"""A bundle: what `convert` writes for one model; loading, running, packing and verifying it."""
