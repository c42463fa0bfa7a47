"""What the server fills in for a client, version by version."""
