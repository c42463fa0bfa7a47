"""The API server as a client of nodes."""
