"""The scheduler's extension points: plugin protocols, `Status`, `CycleState`; never I/O."""
