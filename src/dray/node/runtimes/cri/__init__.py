"""A runtime that uses any implementation of the Container Runtime Interface (CRI)."""
