"""Validation of the kinds, by group: each module validates documents and returns field errors."""
