"""Graphs, their scopes and nodes, and facts about operators."""
