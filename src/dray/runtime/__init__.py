"""What every process needs: real clock, logging, metrics, settings, signals; no Kubernetes semantics."""
