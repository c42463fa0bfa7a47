"""The audit log: which requests are recorded, as what, and where to."""
