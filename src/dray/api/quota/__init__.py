"""Quota evaluation: resource names, usage of objects, and limits. Pure.

Admission charges objects with these functions, and the quota controller recalculates usage with them.
"""
