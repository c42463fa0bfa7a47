"""The connection to one device plugin."""
