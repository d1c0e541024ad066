"""Passes that the user asks for: they fix inputs, or change the opset, precision or IR version of a model."""
