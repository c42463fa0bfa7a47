"""Everything the node itself hands out, put together from settings."""
