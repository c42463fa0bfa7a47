"""The checks: each does something to the driver and judges what comes of it by `rules`."""
