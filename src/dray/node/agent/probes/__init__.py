"""Probes of containers: execution, schedule and thresholds."""
