"""Memory of NUMA nodes set aside for containers."""
