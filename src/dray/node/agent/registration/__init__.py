"""The Node object and its lease: what the machine has, and telling the API server."""
