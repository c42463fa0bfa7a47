"""Keeps the usage that quotas report equal to what their namespaces contain."""
