"""Runs the Pods of a Job until enough have succeeded, and counts every Pod exactly once."""
