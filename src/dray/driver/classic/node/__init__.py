"""The node side of a classic driver: a plugin that makes allocated claims ready for containers."""
