"""Preparing claims: the author's code, a checkpoint that survives crashes, and CDI files."""
