"""Tells users what became of their Pods: conditions and Events."""
