"""Keeps the usage of ResourceQuotas equal to the content of their namespaces."""
