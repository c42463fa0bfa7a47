"""Evicts the Pods whose devices have a NoExecute taint that their claims do not tolerate."""
