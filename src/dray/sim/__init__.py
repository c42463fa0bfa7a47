"""Simulated nodes and drivers, and what-if runs on a snapshot."""
