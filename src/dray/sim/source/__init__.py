"""Where a snapshot of a running cluster comes from."""
