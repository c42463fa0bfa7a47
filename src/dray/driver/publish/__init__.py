"""Publishing of a driver's pools as ResourceSlices."""
