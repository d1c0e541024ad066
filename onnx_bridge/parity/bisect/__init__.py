"""Fault localization: the component, pass application and nodes that make a model wrong."""
