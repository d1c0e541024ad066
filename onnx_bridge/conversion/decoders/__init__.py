"""Language models that generate token by token: their layout, their programs, and encoder-decoder pairs."""
