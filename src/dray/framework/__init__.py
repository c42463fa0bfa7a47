"""The scheduler's extension points: plugin protocols, `Status`, `CycleState`, snapshot types; never I/O."""
