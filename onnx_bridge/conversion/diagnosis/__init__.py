"""What the runtime makes of a model, without compiling it."""
