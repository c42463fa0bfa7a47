"""What runs containers: child processes, runc, any CRI socket, or nothing but memory. One interface for all."""
