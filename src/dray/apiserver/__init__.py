"""The Kubernetes API: request flow, registry, admission, discovery, tables; the only package that stores objects."""
