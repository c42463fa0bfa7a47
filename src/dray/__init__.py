"""Dray: the whole Kubernetes device-allocation stack, in Python."""

__version__ = "0.1.0"
