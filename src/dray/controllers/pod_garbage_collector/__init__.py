"""Removes Pods that no node will ever finish: orphaned, out of service, never placed, or finished and too many."""
