"""Monitors nodes: sets conditions and taints, and evicts Pods from unhealthy nodes at a limited rate."""
