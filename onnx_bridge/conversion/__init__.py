"""From a model to a bundle, and what a bundle is."""
