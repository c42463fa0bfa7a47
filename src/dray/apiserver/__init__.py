"""The Kubernetes API: request flow, registry, admission, discovery, tables; the only room that stores objects."""
