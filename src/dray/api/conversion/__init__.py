"""Lossless conversion between a served version and the hub version of its group."""
