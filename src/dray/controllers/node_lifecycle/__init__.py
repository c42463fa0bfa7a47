"""Watches the heartbeats of nodes: says which are not well, keeps Pods off them, and empties them at a bounded rate."""
