"""Makes claims from templates for Pods, and frees claims whose Pods are done."""
