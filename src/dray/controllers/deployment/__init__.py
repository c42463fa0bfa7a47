"""Replaces a Deployment's Pods by those of a new template, step by step, by way of ReplicaSets."""
