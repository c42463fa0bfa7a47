"""Evicts Pods that do not tolerate a NoExecute taint of their node."""
