"""Containers that exist in memory alone, for nodes by the thousand."""
