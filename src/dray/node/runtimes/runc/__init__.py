"""A runtime that uses runc, with the node's own image store."""
