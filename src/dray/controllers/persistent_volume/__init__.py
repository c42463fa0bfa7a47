"""Binds persistent volume claims to volumes, creates local volumes for them, and writes the phases."""
