"""From a container that runs to one that has ended."""
