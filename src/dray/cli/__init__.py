"""The command-line tools; they use the API like any other client."""
