"""Runs the Pods of a Job to completion and counts every Pod exactly once."""
