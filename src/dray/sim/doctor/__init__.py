"""Finds stuck, left over or inconsistent objects in a snapshot, and suggests fixes."""
