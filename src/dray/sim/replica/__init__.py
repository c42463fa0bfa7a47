"""An in-process cluster that starts from a snapshot and runs in virtual time."""
