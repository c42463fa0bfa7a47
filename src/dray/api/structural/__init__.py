"""Structural OpenAPI schemas of custom resources: their types, their defaults, and what they say about values."""
