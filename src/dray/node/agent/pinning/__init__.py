"""On which CPUs running containers are."""
