"""Counts the healthy Pods of disruption budgets, and how many of them evictions may take."""
