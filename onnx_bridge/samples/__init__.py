"""What a model takes: the roles of its inputs, generated samples, and samples from files."""
