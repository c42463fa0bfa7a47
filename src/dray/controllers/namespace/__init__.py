"""Deletes the content of terminating namespaces and finalizes them."""
