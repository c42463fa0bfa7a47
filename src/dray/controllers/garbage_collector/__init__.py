"""Deletes objects without owners, and performs foreground and orphaning deletion."""
