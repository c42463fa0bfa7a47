"""Preemption: which Pods make room for a Pod of higher priority, and their eviction."""
