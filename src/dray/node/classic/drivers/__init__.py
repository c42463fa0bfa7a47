"""The connection to a classic driver's plugin."""
