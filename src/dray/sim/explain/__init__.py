"""Explains why a Pod is pending or got its devices: filter results per node, and suggestions."""
