"""Evicts the Pods that do not tolerate a NoExecute taint of their node, when their time there is over."""
