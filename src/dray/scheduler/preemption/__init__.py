"""Preemption: which Pods are evicted for a Pod of higher priority, and their eviction."""
