"""Deletes Pods that are orphaned, on nodes out of service, unscheduled and deleted, or finished and too many."""
