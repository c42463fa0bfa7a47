"""A cluster in this process that begins as a snapshot and goes on in virtual time."""
