"""The device manager: device plugins, their devices and health, assignments to containers, and the checkpoint."""
