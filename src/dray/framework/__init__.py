"""The scheduler framework: plugin protocols, `Status`, `CycleState` and snapshot types. No I/O."""
