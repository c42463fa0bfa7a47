"""Typed, frozen structures of the kinds that components work with; the modules are generated from the schema."""
