"""Handlers of subresources, one module per resource that has them. `status` is served by the ordinary handlers."""
