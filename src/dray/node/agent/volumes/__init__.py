"""Volumes: which files they hold, and putting them there."""
