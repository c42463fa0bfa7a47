"""A runtime whose containers are plain child processes: no root, no images, no isolation."""
