"""Rules for neural network layers."""
