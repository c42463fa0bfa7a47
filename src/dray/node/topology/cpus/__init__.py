"""CPUs for containers that get them alone."""
