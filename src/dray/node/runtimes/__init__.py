"""Container runtimes with one interface: child processes, runc, CRI, and simulated containers."""
