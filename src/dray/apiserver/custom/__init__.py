"""Custom resources: endpoints from definitions, validation of their objects, and the reconciler of definitions."""
