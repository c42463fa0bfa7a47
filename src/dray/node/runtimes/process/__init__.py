"""Containers as plain child processes: no root, no images, no isolation."""
