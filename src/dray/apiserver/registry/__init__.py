"""The built-in resources: definitions, strategies and table columns."""
