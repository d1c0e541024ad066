"""Builders that several rules share."""
