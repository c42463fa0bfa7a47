"""Deletes what lost all its owners, and what an owner's foreground or orphaning deletion asks for."""
