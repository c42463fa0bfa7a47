"""Health of devices in use, as their drivers report it."""
