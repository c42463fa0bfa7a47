"""Reports, explanations and simulations of a cluster from a snapshot. Never writes to the cluster."""
