"""Moves of Pods that let other Pods fit: the plan, and its execution step by step."""
