"""Rolls out Deployments by ReplicaSets."""
