"""Capacity plans: which nodes to add or remove, and where Pods go if they are placed together."""
