"""Runs one Pod of a DaemonSet on every node that it selects."""
