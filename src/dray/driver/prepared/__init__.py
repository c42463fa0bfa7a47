"""What the driver has prepared: a record that survives crashes, and the CDI files of it."""
