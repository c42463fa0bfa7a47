"""Quotas: by which names objects are measured, how much they use, and whether that fits.

Pure. Admission charges by these functions, the quota controller recalculates by them, and whoever plans a
move can ask them what it would cost.
"""
