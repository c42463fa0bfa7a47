"""Container logs in the CRI format: parsing, reading and following."""
