"""Probes: when to ask, and what several answers mean."""
