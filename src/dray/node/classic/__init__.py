"""Classic claims (cdi.k8s.io) on the node: prepared by their drivers' plugins, and unprepared when Pods have ended."""
