"""The way of a model: what stands in its way, its bundle, the proof, and its results."""
