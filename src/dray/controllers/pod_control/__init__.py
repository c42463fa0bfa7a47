"""What the workload controllers share: Pods from templates, their status, owners, expectations and writes."""
