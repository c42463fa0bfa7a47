"""Keeping what a container gets close together: NUMA hints, policies, exclusive CPUs and pinned memory."""
