"""Finding what makes a model fastest that is still right: the search over precisions and options."""
