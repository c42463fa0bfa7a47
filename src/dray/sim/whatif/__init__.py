"""Simulates a change of a snapshot with the real scheduler."""
