"""Leader election on a Lease: of several replicas at most one leads, judged by each one's own clock."""
