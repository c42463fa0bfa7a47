"""Container runtimes with one interface: child processes, CRI, and simulated containers."""
