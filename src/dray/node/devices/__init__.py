"""Device plugins: their registration, devices and health, which container has which device, and the checkpoint."""
