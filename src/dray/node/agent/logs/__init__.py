"""Container logs in CRI's format: reading, following, serving."""
