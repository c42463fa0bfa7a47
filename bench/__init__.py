"""Measurements of Dray on this machine: `python -m bench`; everything runs on loopback and ends by itself."""
