"""Writes events in the background, so that telling one never waits."""
