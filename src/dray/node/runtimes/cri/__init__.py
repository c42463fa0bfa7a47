"""Containers by any runtime that serves the Container Runtime Interface."""
