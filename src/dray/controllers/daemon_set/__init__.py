"""Keeps one Pod of a DaemonSet on every node that it is meant for."""
