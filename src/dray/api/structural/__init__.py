"""Structural OpenAPI schemas of custom resources: types, defaults and validation."""
