"""Binds persistent volume claims to volumes that exist, and writes the phases of both."""
